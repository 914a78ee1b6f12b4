package bucket

import (
	"context"
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/host/bucket/buckettest"
	"boxgate/internal/nightly"
)

// TestFullStore: a store without room refuses a layer with an error, keeps the layers that it has, and takes the layer once there is room.
func TestFullStore(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the server has ended
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s, key := buckettest.StartOn(t, dir), newKey(t)
	b := open(t, s, key)
	content, small := layerOf(20, 1<<20)
	l := stored(t, b, "snap_1", small)
	published(t, b, "snap_1", l)
	_, large := layerOf(21, 12<<20)
	written := 0
	_, _, err := b.Upload(t.Context(), func(ctx context.Context, w io.Writer) error { written++; return large(ctx, w) })
	if !errors.Is(err, ErrFull) || written > 2 { // once for the digest, once for the store
		t.Fatalf("a layer in a full store, written %d times: %v", written, err)
	}
	if got, err := fetched(t, b, l); err != nil || string(got) != string(content) {
		t.Errorf("the layer that was there: %v", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	stored(t, b, "snap_2", large)
}
