package boxfs

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// TestIsFixed: a path is fixed only if the user can change no directory on the way to it, through links and back.
func TestIsFixed(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	const prepare = `umask 022; mkdir -p usr/bin theirs/bin shared sticky others/bin group grouped a/b outside
chown 7000:7000 theirs; chown 7001:7000 others; chmod 777 shared; chmod 1777 sticky; chgrp 7000 group; chmod 775 group; chgrp 7001 grouped; chmod 775 grouped
ln -s usr/bin bin; ln -s /usr/bin absolute; ln -s ../../usr/bin theirs/bin/link; ln -s /theirs/bin/link twice; ln -s loop loop
ln -s ../../../../../../usr/bin above; ln -s a/b/../../usr/bin around; ln -s /theirs/../usr/bin through; touch file; mkfifo pipe`
	script := exec.Command("sh", "-ec", prepare)
	script.Dir = dir
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root := openDir(t, dir)
	for path, want := range map[string]bool{
		"/": true, "/usr/bin": true, "//usr/./bin/": true, "/bin": true, "/absolute": true, "/above": true, "/around": true, "/others/bin": true, "/grouped": true, "/../usr/bin": true,
		"/theirs": false, "/theirs/bin": false, "/theirs/bin/link": false, "/twice": false, "/through": false, "/usr/../theirs/bin": false, "/shared": false, "/sticky": false, "/group": false,
		"/loop": false, "/file": false, "/pipe": false, "/missing": false, "/usr/bin/missing": false, "/file/..": false,
	} {
		if got := IsFixed(root, path, 7000); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
	acl := binary.LittleEndian.AppendUint32(nil, 2) // see linux/posix_acl_xattr.h: its version, then tags, permissions and IDs
	for _, entry := range [][3]uint32{{0x01, 7, ^uint32(0)}, {0x02, 7, 7000}, {0x04, 5, ^uint32(0)}, {0x10, 7, ^uint32(0)}, {0x20, 5, ^uint32(0)}} {
		acl = binary.LittleEndian.AppendUint32(acl, entry[0]|entry[1]<<16)
		acl = binary.LittleEndian.AppendUint32(acl, entry[2])
	}
	if err := unix.Setxattr(filepath.Join(dir, "grouped"), "system.posix_acl_access", acl, 0); err != nil {
		t.Fatal(err)
	}
	if IsFixed(root, "/grouped", 7000) {
		t.Error("a list of users who may write is not considered")
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if IsFixed(root, "/usr/bin", 7000) {
		t.Error("a root that everyone may change is fixed")
	}
}
