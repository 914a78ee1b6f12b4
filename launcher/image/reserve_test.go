package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/launcher/disk"
)

// An image is not built when the disk has only the reserve left, and a running build ends there.
func TestAnImageEndsAtTheReserve(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("boxgate-test", dir, "tmpfs", 0, "size=40m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := Store{Dir: filepath.Join(dir, "images"), Reserve: 1 << 30}
	ctx, done, err := s.withReserveWatch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, 38<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Second):
	}
	if full, ok := errors.AsType[*disk.FullError](context.Cause(ctx)); !ok {
		t.Errorf("it has ended by %v", full)
	}
	archive := filepath.Join(t.TempDir(), "root.tar")
	if err := os.WriteFile(archive, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok := errors.AsType[*disk.FullError](s.Ensure(t.Context(), archive, func(string) {})); !ok {
		t.Errorf("another is built")
	}
	if err := os.Remove(big); err != nil {
		t.Fatal(err)
	}
	if _, ok := errors.AsType[*disk.FullError](s.Ensure(t.Context(), archive, func(string) {})); ok {
		t.Errorf("with room again none is built")
	}
}
