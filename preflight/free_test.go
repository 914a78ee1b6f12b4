package preflight

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// TestFreeSpace: a full disk is an error, one with less than the reserve a warning, and one with room neither.
func TestFreeSpace(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("boxgate-test", dir, "tmpfs", 0, "size=40m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	for _, c := range []struct {
		size    int64 // of a file on the disk
		want    string
		warning bool
	}{
		{0, "", false},
		{38 << 20, "less than the 4 MiB that are kept for the gateway (launcher.reserve)", true},
		{40 << 20, "is full (0 KiB are free), so changes cannot be stored: delete boxes", false},
	} {
		if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, c.size), 0o600); err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		err := CheckFree("state_dir", filepath.Join(dir, "not", "made"), 1<<30)
		if c.want == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, new(Warning)) != c.warning {
			t.Errorf("%d MiB: %v", c.size>>20, err)
		}
	}
}
