package preflight

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Only launchers on the host have findings, each once, and a device that cannot be opened is a warning.
func TestLaunchersOfTheHost(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if found := Launchers(root); len(found) != 0 {
		t.Errorf("an empty host has %v", found)
	}
	for _, name := range []string{"run/docker.sock", "var/run/docker.sock", "etc/cni/net.d/file", "dev/vhost-net", "dev/kvm/directory"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for _, f := range Launchers(root) {
		names = append(names, strings.Fields(f.What)[0])
		if warned := f.Err != nil; warned != strings.HasPrefix(f.What, "KVM") {
			t.Errorf("%s: %v", f.What, f.Err)
		}
	}
	if got := strings.Join(names, " "); got != "Docker CNI KVM vhost-net" {
		t.Errorf("found %s", got)
	}
}
