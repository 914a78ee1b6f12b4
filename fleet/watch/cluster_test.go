package watch

import (
	"context"
	"testing"

	"boxgate/fleet/etcdtest"
	"boxgate/internal/nightly"
)

// TestFollowingThroughFailures: the member that serves the watch is cut off from the others, and later the leader is killed. The follower
// moves to another member, and loses no change.
func TestFollowingThroughFailures(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	cluster := etcdtest.StartCluster(t)
	leader := cluster.Leader()
	cut := (leader + 1) % 3
	writer := cluster.Client(leader, (leader+2)%3)
	f, u := follow(t, cluster.Client(cut, (leader+2)%3), nil)
	want := map[string]string{}
	write := func(key, value string) {
		t.Helper()
		want[key] = value
		cluster.Until("a write", func(ctx context.Context) bool { _, err := writer.Put(ctx, key, value); return err == nil })
	}
	write("/w/a", "1")
	etcdtest.Until(t, "the first change", func() bool { return u.is(want) })
	cluster.CutOff(cut)
	write("/w/a", "2")
	write("/w/b", "2")
	etcdtest.Until(t, "changes that the cut-off member does not know", func() bool { return u.is(want) })
	cluster.Heal()
	cluster.Kill(cluster.Leader())
	writer = cluster.Client()
	write("/w/c", "3")
	etcdtest.Until(t, "changes under the next leader", func() bool { return u.is(want) })
	if s := f.State(); s.Listings != 1 {
		t.Logf("%d listings", s.Listings)
	}
}
