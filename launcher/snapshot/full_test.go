package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// TestCaptureOnAFullDisk: a capture fails with that reason; to another file system, which shares no blocks with the box's,
// it works.
func TestCaptureOnAFullDisk(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	upper, disk := t.TempDir(), t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(upper, "small"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Capture(t.Context(), upper, testIDs, filepath.Join(disk, "fits"), wide, unfrozen); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(filepath.Join(Tree(filepath.Join(disk, "fits")), "small")); err != nil || fi.Size() != 1<<20 {
		t.Errorf("%v, %v", fi, err)
	}
	for _, size := range []int{6 << 20, 30 << 20} { // copied while the box is frozen, and ahead
		if err := os.WriteFile(filepath.Join(upper, "large"), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(disk, "full")
		if _, err := Capture(t.Context(), upper, testIDs, to, wide, unfrozen); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
	}
}
