package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/internal/nightly"
)

// purge purges the state of a removed package from separate file systems.
const purge = `
cp /tmp/boxgate.deb /tmp/postrm
key() { mkdir -p /var/lib/boxgate/boxes/b; echo secret >/var/lib/boxgate/secret.key; echo file >/var/lib/boxgate/boxes/b/file; }
run() { sh /tmp/postrm purge >/tmp/said 2>&1 || { cat /tmp/said; echo "failed: $1"; exit 1; }; cat /tmp/said; }

key; run directory
test ! -e /var/lib/boxgate; test ! -s /tmp/said
echo "== a directory"

mkdir /var/lib/boxgate; mount -t tmpfs none /var/lib/boxgate; key; run "mount point"
mountpoint -q /var/lib/boxgate; test -z "$(ls -A /var/lib/boxgate)"; grep -q "stays: /var/lib/boxgate$" /tmp/said
umount /var/lib/boxgate; rmdir /var/lib/boxgate
echo "== a mount point"

mkdir -p /var/lib/boxgate/images; mount -t tmpfs none /var/lib/boxgate/images; key; touch /var/lib/boxgate/images/image; run "mounted below"
test -e /var/lib/boxgate/images/image; test "$(ls -A /var/lib/boxgate)" = images; grep -q "stays: /var/lib/boxgate/images$" /tmp/said
umount /var/lib/boxgate/images; rm -rf /var/lib/boxgate
echo "== a mount below it"

mkdir -m 700 /var/lib/elsewhere; ln -s elsewhere /var/lib/boxgate; key; run link
test ! -e /var/lib/boxgate; test -e /var/lib/elsewhere/secret.key; grep -q "stays: /var/lib/elsewhere$" /tmp/said
echo "== a link"

key; mount --bind /var/lib/boxgate /var/lib/boxgate; mount -o remount,bind,ro /var/lib/boxgate
! sh /tmp/postrm purge >/tmp/said 2>&1
grep -q "Read-only" /tmp/said; test -e /var/lib/boxgate/secret.key
echo "== a disk that fails is an error"
`

// TestPurgeWhereTheStateIsMounted: where the state directory or a part of it is a mount point, the package is purged
// with its keys, and the mount point is kept and reported. Other failures to remove are errors.
func TestPurgeWhereTheStateIsMounted(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	script, err := filepath.Abs("../../dist/debian/postrm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(script); err != nil { // so that a changed script invalidates the cached result
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, sub := range []string{"up", "root", "state"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts", "sh", "-c", machine)
	cmd.Env = []string{"D=" + dir, "DEB=" + script, "SCRIPT=" + purge, "PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin", "LC_ALL=C", "DPKG_MAINTSCRIPT_PACKAGE=boxgate"}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "== a disk that fails is an error") {
		t.Fatalf("%v:\n%s", err, out)
	}
}
