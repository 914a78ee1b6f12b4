package peerapi

import (
	"context"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/fleet"
	"boxgate/fleet/directory"
	"boxgate/fleet/etcdtest"
)

// hostDirectory is the directory of a host that is not fenced.
type hostDirectory struct{ d directory.Directory }

func (d hostDirectory) Directory() directory.Directory { return d.d }
func (hostDirectory) Fenced() bool                     { return false }

// TestNamesWithoutBoxesAreFreed: a name that was claimed for a box which does not exist can be claimed again, whether the answer of the claim was
// lost or the box was not stored. Names of boxes stay.
func TestNamesWithoutBoxesAreFreed(t *testing.T) {
	t.Parallel()
	d := directory.Directory{Client: etcdtest.Start(t).Client(), Keys: fleet.KeysOf("test"), Host: "aaaaaa", Guard: func() clientv3.Cmp {
		return clientv3.Compare(clientv3.Version("unused"), "=", 0)
	}}
	boxes := map[string]directory.Entry{"aaaaaa1": {Name: "web"}}
	n := NewNames(hostDirectory{d}, func() map[string]directory.Entry { return boxes }, zap.NewNop())
	owner := func(name, want string) {
		t.Helper()
		if err := n.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, _, err := d.Find(t.Context(), name); err != nil || got.Box != want {
			t.Errorf("%s belongs to %q, want %q, %v", name, got.Box, want, err)
		}
	}
	owner("web", "aaaaaa1")

	if err := d.Put(t.Context(), "aaaaaa2", directory.Entry{Name: "lost"}); err != nil { // the claim arrives
		t.Fatal(err)
	}
	failed, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Claim(failed, "aaaaaa2", "lost", nil, true); !errors.Is(err, api.ErrUnavailable) { // without its answer
		t.Fatal(err)
	}
	owner("lost", "")

	done, err := n.Claim(t.Context(), "aaaaaa3", "late", nil, true)
	if err != nil {
		t.Fatal(err)
	}
	owner("late", "aaaaaa3") // while the box is made
	done()
	owner("late", "")
	if _, err := n.Claim(t.Context(), "aaaaaa4", "web", nil, true); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a name in use: %v", err)
	}
	owner("web", "aaaaaa1")
}
