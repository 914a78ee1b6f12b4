package keys

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/state"
	"boxgate/policy"
	quotas "boxgate/quota"
	"boxgate/store"
)

// TestSnapshotsOfOtherHostsCount: the snapshots of a key on other hosts, and the bytes of their layers, each once, use its quotas on this host.
func TestSnapshotsOfOtherHostsCount(t *testing.T) {
	t.Parallel()
	db, err := store.Open(store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	elsewhere := []store.Snapshot{
		{ID: "snap_1", TakenBy: "key_1", Layers: []string{"snap_1"}},
		{ID: "snap_2", TakenBy: "key_1", Layers: []string{"snap_1", "snap_2"}},
		{ID: "snap_3", TakenBy: "key_2", Layers: []string{"snap_3"}},
		{ID: "snap_4", Layers: []string{"snap_4"}},
	}
	var limits quotas.Limits
	limits[quotas.Snapshots], limits[quotas.SnapshotBytes] = 3, 1000
	h, err := NewHoldings(HoldingsConfig{
		Log: zap.NewNop(), Book: quotas.New(quotas.Config{Defaults: limits}), Boxes: &state.Table{}, Keys: db.Keys, Snapshots: db.Snapshots,
		Layer:          func(string) (int64, error) { return 0, fs.ErrNotExist },
		Elsewhere:      func(policy.BoxID) ([]store.Snapshot, error) { return elsewhere, nil },
		ElsewhereLayer: func(string) (int64, bool) { return 300, true },
		Space:          func(int64) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	as := func(key string) context.Context {
		return api.WithCaller(t.Context(), api.Caller{Key: key, Role: api.RoleCreator})
	}
	for _, c := range []struct {
		key     string
		kind    quotas.Kind
		n       int64
		refused bool
	}{
		{"key_1", quotas.Snapshots, 1, false}, {"key_1", quotas.Snapshots, 2, true}, {"key_2", quotas.Snapshots, 2, false},
		{"key_1", quotas.SnapshotBytes, 400, false}, {"key_1", quotas.SnapshotBytes, 401, true}, {"key_2", quotas.SnapshotBytes, 700, false},
	} {
		done, err := h.Reserve(as(c.key), c.kind, c.n)
		if _, over := errors.AsType[*quotas.Error](err); over != c.refused || err != nil && !over {
			t.Errorf("%s, %d more of %v: %v", c.key, c.n, c.kind, err)
		}
		if done != nil {
			done()
		}
	}
}
