package usage

import (
	"context"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/host/state"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// The first look at a full disk finds exactly the boxes that have filled it since the last look while it was nearly full.
func TestBoxesThatFillTheDiskAreFoundAtOnce(t *testing.T) {
	t.Parallel()
	k := DiskGuard{writtenBefore: map[policy.BoxID]int64{}}
	for _, look := range []struct {
		full  bool
		wrote map[policy.BoxID]int64
		fills map[policy.BoxID]bool
	}{
		{full: false, wrote: map[policy.BoxID]int64{"fast": 10 << 20, "slow": 50 << 20, "once": 0}},
		{full: false, wrote: map[policy.BoxID]int64{"fast": 20 << 20, "slow": 50<<20 + 1, "once": 30 << 20}},
		{full: true, wrote: map[policy.BoxID]int64{"fast": 30 << 20, "slow": 50<<20 + 2, "once": 30 << 20, "new": 5 << 20}, fills: map[policy.BoxID]bool{"fast": true}},
		{full: true, wrote: map[policy.BoxID]int64{"slow": 51<<20 + 1, "once": 30 << 20, "new": 7 << 20}, fills: map[policy.BoxID]bool{"slow": true, "new": true}},
	} {
		for id, written := range look.wrote {
			if got := k.isFilling(id, written, look.full); got != look.fills[id] {
				t.Errorf("%s fills the disk: %t, although it has written %d bytes", id, got, written)
			}
		}
	}
}

// TestSpaceContinuesNoBoxBeyondItsEnd: boxes that were paused for writing to a full disk are resumed when there is space, except a box
// that has reached its end meanwhile: nobody has used it, so auto_resume does not give it a new end.
func TestSpaceContinuesNoBoxBeyondItsEnd(t *testing.T) {
	t.Parallel()
	db, err := store.Open(store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	table := &state.Table{}
	u := &Service{
		records: db.Boxes, log: zap.NewNop(), boxes: table, sandboxes: state.Sandboxes{Launcher: &launcher.Launcher{}}, history: history.New(table.Has),
		space: func(int64) error { return nil },
	}
	resumed := map[policy.BoxID]bool{}
	u.starter = starter(func(b *state.Box) error {
		resumed[b.ID] = true
		b.ShowError("stopped by the test")
		return nil
	})
	u.RenewBy(func(context.Context, *state.Box) error { return nil })
	k := NewDiskGuard(u, nil, launcher.Reserve{})
	k.writtenBefore, k.paused = map[policy.BoxID]int64{}, map[policy.BoxID]bool{"gone": true}
	for id, atEnd := range map[policy.BoxID]bool{"goes on": false, "at its end": true} {
		b := state.NewBox(store.Box{ID: id, OnEnd: api.EndPause, AutoResume: true, PausedAtEnd: atEnd}, store.Policy{}, store.Headers{}, api.Hosted{}, 0)
		table.Add(b)
		b.Status, b.FilledDisk = api.StatusPaused, true
		b.Publish()
		k.paused[id] = true
	}
	k.checkSpace(t.Context())
	if len(resumed) != 1 || !resumed["goes on"] {
		t.Errorf("resumed: %v", resumed)
	}
}
