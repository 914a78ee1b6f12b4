package command

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/preflight"
)

// canary is part of every secret and of every text of a user.
const canary = "c4n4ry"

// unpack returns the files of an archive by name.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		text, readErr := io.ReadAll(in)
		if err := errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "boxgate-support/")] = string(text)
	}
}

// TestAttackSupportHasNoSecret: a canary in every place of the configuration and of a box where a secret or a text of a user can
// be is in no file of the archive, with and without a gateway.
func TestAttackSupportHasNoSecret(t *testing.T) {
	host := serveInMemory(t)
	host.Add(t, api.CreateRequest{
		Name: "name-" + canary, Labels: []string{"label-" + canary}, Env: map[string]name.Secret{"KEY": name.NewSecret(canary)},
		Policy: policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{canary + ".example", "b.example"}},
	})
	e := apitest.Decision("box3", 1<<40, canary+".example", policy.Deny)
	e.BoxName, e.Path = "name-"+canary, "/"+canary
	host.AddDecision(e)
	dir := t.TempDir()
	file := filepath.Join(dir, "boxgate.yaml")
	err := os.WriteFile(file, []byte(`state_dir: `+dir+`/`+canary+`
admin: {hosts: [`+canary+`.example]}
dns: {upstreams: ["192.0.2.1"]}
drain: 7m
proxy:
  upstream_ca_files: [/etc/`+canary+`.pem]
  upstream: {url: "http://`+canary+`.example:3128", username: `+canary+`, password: one}
ingress: {domain: `+canary+`.example}
launcher: {images: {default: debian, `+canary+`: debian}}
policy: {default: {mode: custom, allowed_domains: [`+canary+`.example]}}
log: {export: {webhook: {url: "https://`+canary+`.example/`+canary+`", secret: one}}}
secrets:
  one: {value: `+canary+`-value}
  two: {command: [/bin/echo, --token=`+canary+`]}
  `+canary+`: {file: /etc/`+canary+`}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(config.PassphraseVariable, canary+"-passphrase")
	for when, args := range map[string][]string{"served": nil, "not": {"--admin", filepath.Join(dir, "none.sock")}} {
		path := filepath.Join(dir, when+".tar.gz")
		out, status := runCommandLine(t, append([]string{"support", path, "--config", file}, args...)...)
		if status != cli.ExitOK || strings.Contains(out, canary) {
			t.Fatalf("exit %d: %s", status, out)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Error(info.Mode(), err)
		}
		files := unpack(t, path)
		for of, text := range files {
			if strings.Contains(text, canary) || strings.Contains(text, "left out") {
				t.Errorf("%s: %s contains a canary:\n%s", when, of, text)
			}
		}
		for of, want := range map[string]string{"about.json": `"kernel": "`, "configuration.json": `"drain": "7m0s"`} {
			if !strings.Contains(files[of], want) {
				t.Errorf("%s: %s has no %s:\n%s", when, of, want, files[of])
			}
		}
		for of, want := range map[string]string{"boxes.json": `"allowed_domains": 2`, "gateway.json": `"uptime_seconds"`} {
			if strings.Contains(files[of], want) != (when == "served") || strings.Contains(files[of], `"error": "`) != (when == "not") {
				t.Errorf("%s: %s:\n%s", when, of, files[of])
			}
		}
		out, status = runCommandLine(t, append([]string{"support", "--json", "--config", file}, args...)...)
		if status != cli.ExitOK || strings.Contains(out, canary) || !strings.Contains(out, `"about.json":{`) {
			t.Errorf("exit %d: %s", status, out)
		}
	}
	if out, status := runCommandLine(t, "support", filepath.Join(dir, "not.tar.gz")); status != cli.ExitFailed || !strings.Contains(out, "exists already") {
		t.Errorf("exit %d: %s", status, out)
	}
}

// TestAttackSupportHidesMistakes: mistakes of the configuration are named by key and line, without the values that their messages
// quote.
func TestAttackSupportHidesMistakes(t *testing.T) {
	_, err := config.Parse("boxgate.yaml", []byte("proxy: {upstream: {url: \"http://u:"+canary+"@p.example\"}, deny: "+canary+"}\ndrain: "+canary+"\n"+canary+": 1\n"),
		[]string{"BOXGATE_DRAIN=" + canary, "BOXGATE_PROXY_DENY=" + canary, "BOXGATE_DNS_UPSTREAMS=" + canary})
	if err == nil || !strings.Contains(err.Error(), canary) {
		t.Fatalf("the control: %v", err)
	}
	text := ""
	for _, f := range redactedFindings([]preflight.Finding{{What: configurationFinding + "boxgate.yaml", Err: err}, {What: "root"}}) {
		text += f.What + ": " + f.Error + f.Warning + "\n"
	}
	if strings.Contains(text, canary) || !strings.Contains(text, "line 2") || !strings.Contains(text, "BOXGATE_DRAIN") {
		t.Error(text)
	}
}

// TestSupportChecksAgain: a file that contains a secret of the configuration is left out.
func TestSupportChecksAgain(t *testing.T) {
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	if err := os.WriteFile(filepath.Join(cfg.StateDir, "api-key"), []byte(canary+"-key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := withoutSecrets([]supportFile{{"a", []byte("x " + canary + "-key y")}, {"b", []byte(audit.Escape("fine", 9))}}, knownSecrets(cfg))
	if bytes.Contains(files[0].content, []byte(canary)) || string(files[1].content) != "fine" {
		t.Errorf("%s %s", files[0].content, files[1].content)
	}
}
