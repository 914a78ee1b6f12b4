package rootfs

import (
	"crypto/x509/pkix"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/launcher/launchertest"
	"boxgate/launcher/namespace"
)

// A box accepts its gateway as any host, in addition to the hosts that the image knows. The key of the box that the files
// came from is removed.
func TestKnownHosts(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	at := t.TempDir()
	root, err := Open(at, namespace.IDsAt(7))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	const of = "git.example.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
	file := filepath.Join(at, knownHostsPath)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(of), 0o600); err != nil { // without a line break
		t.Fatal(err)
	}
	var lines []byte
	for _, box := range []string{"old", "new"} {
		ca, _ := launchertest.Certificate(t, pkix.Name{CommonName: boxCAName + box, Organization: []string{"boxgate"}}, nil, nil)
		certs, err := parseCA(ca)
		if err != nil {
			t.Fatal(err)
		}
		if err := root.writeKnownHosts(certs); err != nil {
			t.Fatal(err)
		}
		if lines, err = KnownHosts(ca); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if want := of + "\n" + string(lines); err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if out, err := exec.Command("ssh-keygen", "-f", file, "-F", "[any.example.org]:2222").CombinedOutput(); err != nil || !strings.Contains(string(out), boxCAName+"new") {
		t.Errorf("ssh-keygen: %v: %s", err, out)
	}
}
