// Package kubernetes has the test of the manifests in this directory.
package kubernetes

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"boxgate/config"
)

// followed matches the lines of boxgate.yaml that are comments until policies are resources.
var followed = regexp.MustCompile(`(?m)^( +)# (kubernetes: .*|- \{?name: kubernetes.*|  projected:|    (?:defaultMode: 0400|sources:)|      - .*)$`)

// The manifests have only fields of Kubernetes and of kubernetes-sigs/agent-sandbox, and a configuration that the gateway accepts.
func TestManifests(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the types of Kubernetes (make test)")
	}
	t.Parallel()
	dir := t.TempDir()
	validate := filepath.Join(dir, "validate")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", validate, ".")
	build.Dir, build.Env = "validate", append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	manifests, err := filepath.Glob("*.yaml")
	if err != nil || len(manifests) < 4 {
		t.Fatal(manifests, err)
	}
	following := filepath.Join(dir, "following.yaml")
	if whole, err := os.ReadFile("boxgate.yaml"); err != nil || os.WriteFile(following, followed.ReplaceAll(whole, []byte("$1$2")), 0o600) != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(validate, following).CombinedOutput(); err != nil || !strings.Contains(string(out), "\nkubernetes: {policies: true}") {
		t.Errorf("with the volume kubernetes: %v\n%s", err, out)
	}
	var conf, errout bytes.Buffer
	cmd := exec.Command(validate, manifests...)
	cmd.Stdout, cmd.Stderr = &conf, &errout
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errout.String())
	}
	text := conf.String()
	for _, conf := range []string{text, strings.NewReplacer("# secrets:", "secrets:", "#   openai:", "  openai:").Replace(text)} {
		cfg, err := config.Parse("boxgate.yaml", []byte(conf), nil)
		if err != nil || cfg.Launcher.Enabled || cfg.Attach.CNI.For("sandboxes").Default != "named:web" {
			t.Errorf("the configuration: %v\n%s", err, conf)
		}
	}
	for _, change := range [][2]string{{"hostNetwork: true", "hostNetwrok: true"}, {"name: run, mountPath: /run,", "name: runs, mountPath: /run,"}, {"maxUnavailable: 1", "maxUnavailable: [1]"}, {"openAPIV3Schema:", "openAPISchema:"}} {
		whole, err := os.ReadFile(map[bool]string{true: "boxgatepolicy.yaml", false: "boxgate.yaml"}[strings.HasPrefix(change[0], "openAPI")])
		if err != nil || !strings.Contains(string(whole), change[0]) {
			t.Fatalf("no %s: %v", change[0], err)
		}
		path := filepath.Join(dir, "broken.yaml")
		if err := os.WriteFile(path, []byte(strings.Replace(string(whole), change[0], change[1], 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(validate, path).CombinedOutput(); err == nil {
			t.Errorf("%s was accepted: %s", change[1], out)
		}
	}
}
