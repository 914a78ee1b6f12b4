package snapshots

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// free is an allowance without limits.
var free = Allowance{Stored: func() {}, Grow: func(int64) error { return nil }, Release: func() {}}

// slowBoxes simulates captures that continue until they are canceled.
type slowBoxes struct {
	began  chan struct{}
	gaveUp func()
}

func (s *slowBoxes) Capture(ctx context.Context, _ policy.BoxID, layer string, _ func(int64) error) (launcher.Captured, error) {
	if s.began == nil {
		return launcher.Captured{Layers: []string{layer}}, nil
	}
	s.began <- struct{}{}
	<-ctx.Done()
	s.gaveUp()
	return launcher.Captured{}, ctx.Err()
}

func (*slowBoxes) KeepLayers(func(string) bool) error { return nil }

// TestSnapshotsAreDeletedBeforeTheyAreGivenUp: by the time a capture is canceled, all named snapshots are deleted. If one
// of them does not exist, the others stay, including snapshots that are being taken.
func TestSnapshotsAreDeletedBeforeTheyAreGivenUp(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	db, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	pools := store.Pools{V4: netip.MustParsePrefix("10.200.0.0/24"), V6: netip.MustParsePrefix("fd42::/64"), Reserved: 3}
	if _, err := db.Boxes.Allocate(store.Box{ID: "box1", PlaceholderKey: store.NewKey()}, pools); err != nil {
		t.Fatal(err)
	}
	boxes := &slowBoxes{}
	s := New(zap.NewNop(), db.Snapshots, boxes, func(f func() error) error { return f() })
	defer s.Close()
	if _, err := s.Take(t.Context(), store.Snapshot{ID: "snap_ready", Box: "box1"}, free); err != nil {
		t.Fatal(err)
	}
	boxes.began = make(chan struct{}, 1)
	boxes.gaveUp = func() {
		if err := db.Snapshots.Delete([]string{"snap_ready"}); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("a capture was canceled before the snapshots were deleted: %v", err)
		}
	}
	taken := make(chan error, 1)
	go func() {
		_, err := s.Take(context.Background(), store.Snapshot{ID: "snap_slow", Box: "box1"}, free)
		taken <- err
	}()
	<-boxes.began
	if err := s.Delete(t.Context(), []string{"snap_slow", "snap_none"}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleting an unknown snapshot: %v", err)
	}
	if r, err := s.Get("snap_slow"); err != nil || r.State != Creating {
		t.Errorf("it is %s, %v", r.State, err)
	}
	if err := s.Delete(t.Context(), []string{"snap_ready", "snap_slow"}); err != nil {
		t.Error(err)
	}
	if err := <-taken; !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Take returned %v", err)
	}
	if list, err := s.List(""); err != nil || len(list) != 0 {
		t.Errorf("left: %v %v", list, err)
	}
}

// largeBoxes simulates captures that take long, except the first.
type largeBoxes struct{ begun atomic.Int64 }

func (l *largeBoxes) Capture(ctx context.Context, id policy.BoxID, layer string, _ func(int64) error) (launcher.Captured, error) {
	l.begun.Add(1)
	if id != "box5" {
		select {
		case <-ctx.Done():
			return launcher.Captured{}, ctx.Err()
		case <-time.After(15 * time.Minute):
		}
	}
	return launcher.Captured{Layers: []string{layer}}, nil
}

func (*largeBoxes) KeepLayers(func(string) bool) error { return nil }

// TestLongCaptureBeginsAnew: a snapshot that had to make room for another box's is still taken, and its caller does not
// notice.
func TestLongCaptureBeginsAnew(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	synctest.Test(t, func(t *testing.T) {
		db, err := store.Open(store.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		pools := store.Pools{V4: netip.MustParsePrefix("10.200.0.0/24"), V6: netip.MustParsePrefix("fd42::/64"), Reserved: 3}
		boxes := &largeBoxes{}
		s := New(zap.NewNop(), db.Snapshots, boxes, func(f func() error) error { return f() })
		defer s.Close()
		for _, box := range []policy.BoxID{"box1", "box2", "box3", "box4", "box5"} {
			if _, err := db.Boxes.Allocate(store.Box{ID: box, PlaceholderKey: store.NewKey()}, pools); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Take(t.Context(), store.Snapshot{ID: "snap_" + string(box), Box: box}, free); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(brief)
		synctest.Wait()
		if r, err := s.Get("snap_box5"); err != nil || r.State != Ready {
			t.Errorf("a small box waits for large ones: %+v, %v", r, err)
		}
		time.Sleep(time.Hour)
		list, err := s.List("")
		if err != nil || len(list) != 5 || boxes.begun.Load() != 6 {
			t.Errorf("%d snapshots, %d begun: %v", len(list), boxes.begun.Load(), err)
		}
		for _, r := range list {
			if r.State != Ready {
				t.Errorf("%s is %s: %s", r.ID, r.State, r.Error)
			}
		}
	})
}
