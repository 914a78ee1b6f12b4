package snapshots

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// slow is where the files of boxes are: a capture goes on until it is given up.
type slow struct {
	began  chan struct{}
	gaveUp func()
}

func (s *slow) Capture(ctx context.Context, _ policy.BoxID, layer string) (launcher.Captured, error) {
	if s.began == nil {
		return launcher.Captured{Layers: []string{layer}}, nil
	}
	s.began <- struct{}{}
	<-ctx.Done()
	s.gaveUp()
	return launcher.Captured{}, ctx.Err()
}

func (*slow) KeepLayers(func(string) bool) error { return nil }

// TestSnapshotsAreDeletedBeforeTheyAreGivenUp: whatever happens while a capture is given up, all that were named are deleted by then;
// and one that is not there keeps the others as they are, those included that are being taken.
func TestSnapshotsAreDeletedBeforeTheyAreGivenUp(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	db, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	pools := store.Pools{V4: netip.MustParsePrefix("10.200.0.0/24"), V6: netip.MustParsePrefix("fd42::/64"), Reserved: 3}
	if _, err := db.AllocateBox(store.Box{ID: "box1", PlaceholderKey: store.NewKey()}, pools); err != nil {
		t.Fatal(err)
	}
	boxes := &slow{}
	s := New(zap.NewNop(), db, boxes, func(f func() error) error { return f() })
	defer s.Close()
	if _, err := s.Take(t.Context(), store.Snapshot{ID: "snap_ready", Box: "box1"}); err != nil {
		t.Fatal(err)
	}
	boxes.began = make(chan struct{}, 1)
	boxes.gaveUp = func() {
		if err := db.DeleteSnapshots([]string{"snap_ready"}); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("a capture was given up before the snapshots were deleted: %v", err)
		}
	}
	taken := make(chan error, 1)
	go func() {
		_, err := s.Take(context.Background(), store.Snapshot{ID: "snap_slow", Box: "box1"})
		taken <- err
	}()
	<-boxes.began
	if err := s.Delete(t.Context(), []string{"snap_slow", "snap_none"}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleting one that is not there: %v", err)
	}
	if r, err := s.Get("snap_slow"); err != nil || r.State != Creating {
		t.Errorf("it is %s, %v", r.State, err)
	}
	if err := s.Delete(t.Context(), []string{"snap_ready", "snap_slow"}); err != nil {
		t.Error(err)
	}
	if err := <-taken; !errors.Is(err, store.ErrNotFound) {
		t.Errorf("who took it was told %v", err)
	}
	if list, err := s.List(""); err != nil || len(list) != 0 {
		t.Errorf("left: %v %v", list, err)
	}
}
