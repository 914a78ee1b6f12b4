package shared

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/nightly"
)

// TestLeaderKilledDuringChanges: the leader of a cluster of three is killed while a host changes a shared object. No change with an answer is
// lost, one without an answer was made or not, and changes go on; the other host has the last one in force when it is answered.
func TestLeaderKilledDuringChanges(t *testing.T) {
	nightly.Root(t)
	t.Parallel()
	cluster := etcdtest.StartCluster(t)
	client := cluster.Client()
	a, b := newPeer(t, client, "aaaaaa"), newPeer(t, client, "bbbbbb")
	one, two := follow(t, a), follow(t, b)
	var answered, open atomic.Int64
	change := func(ctx context.Context) (int64, error) {
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return a.table.Change(call, APIKeys, func(objects map[string][]byte) error {
			n, _ := strconv.ParseInt(string(objects["n"]), 10, 64)
			objects["n"] = strconv.AppendInt(nil, n+1, 10)
			return nil
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			switch _, err := change(t.Context()); {
			case err == nil:
				answered.Add(1)
			case errors.Is(err, fleet.ErrUnreachable):
				open.Add(1)
			default:
				t.Error(err)
			}
		}
	}()
	etcdtest.Until(t, "changes are made", func() bool { return answered.Load() > 10 })
	cluster.Kill(cluster.Leader())
	before := answered.Load()
	etcdtest.Until(t, "changes are made without the leader", func() bool { return answered.Load() > before+10 })
	cancel()
	<-done
	revision, err := change(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := one.AwaitAll(t.Context(), &a.acks, APIKeys, revision); err != nil || !two.Current() {
		t.Errorf("the last change: %v", err)
	}
	now, err := b.table.list(t.Context(), APIKeys)
	n, _ := strconv.ParseInt(string(now["n"]), 10, 64)
	if least := answered.Load() + 1; err != nil || n < least || n > least+open.Load() {
		t.Errorf("%d changes are there, %d were answered and %d left open; %v", n, least, open.Load(), err)
	}
}
