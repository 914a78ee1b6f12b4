package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/launcher/disk"
)

// Boxes of a state directory that is not mounted still need their image. Boxes of a removed one do not.
func TestHoldersOfAnUnmountedDirectory(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	s, disk := Store{Dir: t.TempDir()}, t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	mounted := true
	t.Cleanup(func() {
		if mounted {
			_ = unix.Unmount(disk, unix.MNT_DETACH)
		}
	})
	state := t.TempDir()
	removed, away, old := filepath.Join(state, "boxes", "a"), filepath.Join(disk, "boxes", "b"), filepath.Join(disk, "boxes", "old")
	for _, holder := range []string{removed, away, old} {
		if err := os.MkdirAll(holder, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := s.writeHolder("key", holder); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.holders("key"), holderFile(old)), []byte(old), 0o600); err != nil { // like older versions
		t.Fatal(err)
	}
	if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	mounted = false
	if err := os.RemoveAll(state); err != nil {
		t.Fatal(err)
	}
	users, err := s.liveHolders("key")
	if slices.Sort(users); err != nil || !slices.Equal(users, []string{away, old}) {
		t.Errorf("%v, %v", users, err)
	}
	if err := os.MkdirAll(filepath.Dir(old), 0o700); err != nil { // an old holder whose box is known to be gone
		t.Fatal(err)
	}
	if users, err := s.liveHolders("key"); err != nil || !slices.Equal(users, []string{away}) {
		t.Errorf("%v, %v", users, err)
	}
}

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
