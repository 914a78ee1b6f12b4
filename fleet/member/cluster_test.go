package member

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/nightly"
)

// TestClusterOfThree: a host survives the death of the leader unfenced. A host whose only member is cut off from the others is fenced when
// its lease ends, while a host at the majority is not; it is unfenced after the cut heals.
func TestClusterOfThree(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	cluster := etcdtest.StartCluster(t)
	leader := cluster.Leader()
	minority, third := (leader+1)%3, (leader+2)%3
	all := cluster.Client()
	const long = 6 * time.Second // longer than an election
	start := func(id string, members ...int) *Session {
		join(t, all, id)
		s, err := New(Config{Client: cluster.Client(members...), Keys: keys, Host: id, Founding: founding, Key: key, Presence: fleet.Presence{Instance: id}, TTL: long, Log: zap.NewNop()})
		if err == nil {
			err = s.Start(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		run(t, s)
		return s
	}
	cut, others := start("aaaaaa", minority), start("bbbbbb")
	cluster.CutOff(minority)
	began := time.Now()
	etcdtest.Until(t, "the host at the minority is fenced", cut.Fenced)
	if took := time.Since(began); took > long+long/2 {
		t.Errorf("fenced %v after the cut; the TTL is %v", took, long)
	}
	cluster.Until("etcd ends the lease of the host", func(ctx context.Context) bool {
		text, _, err := fleet.Get(ctx, cluster.Client(leader, third), keys.Presence("aaaaaa"))
		return err == nil && text == nil
	})
	if !cut.Fenced() || others.Fenced() {
		t.Errorf("fenced: the host at the minority %v, the other %v", cut.Fenced(), others.Fenced())
	}
	if _, _, err := fleet.Get(withTimeout(t, 2*time.Second), cluster.Client(minority), keys.Presence("bbbbbb")); !errors.Is(err, fleet.ErrUnreachable) {
		t.Errorf("a read at the minority: %v", err)
	}
	cluster.Heal()
	etcdtest.Until(t, "the host is not fenced any longer", func() bool { return !cut.Fenced() })
	cluster.Kill(cluster.Leader())
	killed := time.Now()
	etcdtest.Until(t, "a lease outlives the leader", func() bool {
		if others.Fenced() {
			t.Fatalf("fenced %v after the death of the leader", time.Since(killed))
		}
		return time.Since(killed) > long+long/2
	})
}

func withTimeout(t *testing.T, most time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), most)
	t.Cleanup(cancel)
	return ctx
}
