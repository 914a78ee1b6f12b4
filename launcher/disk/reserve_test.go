package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// The reserve is not used, in bytes and inodes, and is at most a tenth of a small file system.
func TestReserve(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("boxgate-test", dir, "tmpfs", 0, "size=40m,nr_inodes=100"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	r := Reserve{Dir: filepath.Join(dir, "later"), Bytes: 1 << 30}
	if err := r.Check(35 << 20); err != nil {
		t.Error(err)
	}
	full := func(what string, n int64, files bool) {
		t.Helper()
		err := r.Check(n)
		if e, ok := errors.AsType[*FullError](err); !ok || e.Files != files || !strings.Contains(err.Error(), "delete boxes") {
			t.Errorf("%s: %v", what, err)
		}
	}
	full("the last tenth", 37<<20, false)
	if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 37<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	full("nothing more", 0, false)
	if err := (Reserve{Dir: dir}).Check(1 << 40); err != nil {
		t.Errorf("without a reserve: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "big")); err != nil {
		t.Fatal(err)
	}
	for i := range 95 {
		if err := os.WriteFile(filepath.Join(dir, strings.Repeat("f", i+1)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	full("files", 0, true)
}
