package origin

import (
	"fmt"
	"net"
	"testing"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestHostsRememberedAreBounded names ever new hosts that speak HTTP/1.1 alone.
func TestHostsRememberedAreBounded(t *testing.T) {
	t.Parallel()
	p := newBoxPool(&policy.Box{}, 4, memory.New(1<<20, 1<<20).Account("box"))
	here, _ := net.Pipe()
	for i := range 100 {
		n, err := name.Parse(fmt.Sprintf("h%d.example.com", i))
		if err != nil {
			t.Fatal(err)
		}
		pl, err := p.conns.Acquire(key{name: n}, 0)
		if err == nil {
			err = pl.Add(&Conn{NetConn: here, pool: p, place: pl})
		}
		if err != nil {
			t.Fatal(err)
		}
		pl.Release()
		if n := p.conns.Stats().Ports; n > 8 {
			t.Fatalf("%d hosts", n)
		}
	}
}

// A box resumes its own TLS sessions. A handler that outlives the box cannot restore them.
func TestSessionsEndWithTheBox(t *testing.T) {
	t.Parallel()
	p := New(Config{MaxPerBox: 1})
	who := Client{Box: &policy.Box{ID: "b1"}, Denied: func() *policy.DeniedError { return nil }}
	if _, err := p.poolOf(who); err != nil {
		t.Fatal(err)
	}
	if p.sessionsOf("b1") == nil || p.sessionsOf("b1") != p.sessionsOf("b1") || p.sessionsOf("b2") != nil {
		t.Error("sessions are not kept for a box")
	}
	p.CloseBox("b1")
	if p.sessionsOf("b1") != nil || len(p.pools.boxes) > 0 {
		t.Error("sessions are kept for a box that is gone")
	}
}

// The number of a box's connections to servers follows the current value of its own limit.
func TestConnectionsToServersHaveTheBoxesOwnLimit(t *testing.T) {
	t.Parallel()
	box := &policy.Box{}
	p := newBoxPool(box, 4, memory.New(1<<30, 1<<30).Account("box"))
	for _, limit := range []int64{2, 6, 3, 0} {
		box.Limits.Store(policy.Limits{policy.LimitUpstreams: limit})
		var places []*place
		for pl, err := p.conns.Acquire(key{}, 0); err == nil; pl, err = p.conns.Acquire(key{}, 0) {
			places = append(places, pl)
		}
		if limit == 0 {
			limit = 4
		}
		if len(places) != int(limit) {
			t.Errorf("%d connections are made, want %d", len(places), limit)
		}
		for _, pl := range places {
			pl.Release()
		}
	}
}
