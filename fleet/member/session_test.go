package member

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
)

// ttl is the shortest one that etcd accepts.
const ttl = 2 * time.Second

var keys = fleet.KeysOf("test")

// The membership of the hosts of these tests.
const founding = "0123456789abcdef"

var key = []byte("fingerprint")

// join writes the records of the fleet and of a host.
func join(t *testing.T, c *clientv3.Client, id string) {
	t.Helper()
	write(t, c, keys.Founding(), fleet.Founding{ID: founding, Protocol: fleet.Protocol})
	write(t, c, keys.Host(id), fleet.Host{ID: id, Protocol: fleet.Protocol, Key: key})
}

func write(t *testing.T, c *clientv3.Client, at string, record any) {
	t.Helper()
	text, err := fleet.Encode(record)
	if err == nil {
		_, err = c.Put(t.Context(), at, text)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// session returns a session of a gateway with a presence of its own.
func session(t *testing.T, c *clientv3.Client, p fleet.Presence) *Session {
	t.Helper()
	s, err := New(Config{Client: c, Keys: keys, Host: "a1b2c3", Founding: founding, Key: key, Presence: p, TTL: ttl, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a session until stop is called or the test ends.
func run(t *testing.T, s *Session) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func present(t *testing.T, c *clientv3.Client) fleet.Presence {
	t.Helper()
	text, _, err := fleet.Get(t.Context(), c, keys.Presence("a1b2c3"))
	if err != nil {
		t.Fatal(err)
	}
	if text == nil {
		return fleet.Presence{}
	}
	p, err := fleet.Decode[fleet.Presence](text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestFenceClosesAtTheEndOfTheLease: without etcd, the fence closes at the last keep-alive plus the TTL at the latest, and it opens with
// the next lease.
func TestFenceClosesAtTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	c := server.Client()
	join(t, c, "a1b2c3")
	s := session(t, c, fleet.Presence{Instance: "1"})
	if !s.Fenced() {
		t.Fatal("a session without a lease is not fenced")
	}
	if err := s.Start(t.Context()); err != nil || s.Fenced() {
		t.Fatal(err, s.Fenced())
	}
	run(t, s)
	began := time.Now()
	etcdtest.Until(t, "the lease outlives its TTL by keep-alives", func() bool {
		if s.Fenced() {
			t.Fatal("fenced while etcd serves")
		}
		return time.Since(began) > ttl+ttl/2
	})
	server.Kill()
	killed := time.Now()
	if left := s.Left(); left <= 0 || left > ttl {
		t.Errorf("%v left of a TTL of %v", left, ttl)
	}
	etcdtest.Until(t, "the fence closes", s.Fenced)
	if took := time.Since(killed); took > ttl+ttl/4 {
		t.Errorf("the fence closed %v after etcd was killed; the TTL is %v", took, ttl)
	}
	etcdtest.Until(t, "the session names the problem", func() bool { return s.Problem() != nil })
	server.Restart()
	etcdtest.Until(t, "the fence opens again", func() bool { return !s.Fenced() })
	etcdtest.Until(t, "no problem is left", func() bool { return s.Problem() == nil })
}

// TestFenceClosesBeforeTheLeaseEnds: while etcd has the presence, a host may be unfenced; once it is gone, the host is fenced. The
// keep-alives are stopped, not etcd, which is therefore the judge.
func TestFenceClosesBeforeTheLeaseEnds(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	join(t, c, "a1b2c3")
	s := session(t, c, fleet.Presence{Instance: "1"})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	etcdtest.Until(t, "etcd ends the lease", func() bool { return present(t, c).Instance == "" })
	if !s.Fenced() {
		t.Error("etcd ended the lease, and the host is not fenced")
	}
}

// TestClonedDisk: a second gateway with the same host ID does not start while the first one runs, and does not disturb it.
func TestClonedDisk(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	c := server.Client()
	join(t, c, "a1b2c3")
	first := session(t, c, fleet.Presence{Instance: "1", Boot: "x", Store: "1:2"})
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, first)
	for name, p := range map[string]fleet.Presence{
		"on another machine": {Instance: "2", Boot: "y", Store: "1:2"}, "in another directory": {Instance: "3", Boot: "x", Store: "1:3"},
	} {
		if err := session(t, c, p).Start(t.Context()); !errors.Is(err, ErrCloned) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if first.Fenced() || present(t, c).Instance != "1" {
		t.Errorf("the first gateway: fenced %v, present %+v", first.Fenced(), present(t, c))
	}
}

// TestRebootedMachineStarts: a host whose last run was not ended waits for its own lease, and then starts.
func TestRebootedMachineStarts(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	join(t, c, "a1b2c3")
	if err := session(t, c, fleet.Presence{Instance: "1", Boot: "x", Store: "1:2"}).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := session(t, c, fleet.Presence{Instance: "2", Boot: "y", Store: "1:2"})
	if err := next.Start(t.Context()); err != nil || next.Fenced() || present(t, c).Instance != "2" {
		t.Error(err, next.Fenced(), present(t, c))
	}
}

// TestSuccessorTakesOver: the next process of the same machine and store need not wait. Its predecessor is not fenced, and does not take
// the presence back.
func TestSuccessorTakesOver(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	join(t, c, "a1b2c3")
	before := session(t, c, fleet.Presence{Instance: "1", Boot: "x", Store: "1:2"})
	if err := before.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop := run(t, before)
	next := session(t, c, fleet.Presence{Instance: "2", Boot: "x", Store: "1:2"})
	if err := next.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if before.Fenced() || next.Fenced() {
		t.Errorf("fenced: predecessor %v, successor %v", before.Fenced(), next.Fenced())
	}
	before.Recheck()
	etcdtest.Until(t, "the predecessor does not take the presence back", func() bool { return errors.Is(before.Problem(), ErrCloned) })
	stop()
	before.Close()
	if p := present(t, c); p.Instance != "2" {
		t.Errorf("after the predecessor's end: %+v", p)
	}
	next.Close()
	if p := present(t, c); p.Instance != "" {
		t.Errorf("after the successor's end: %+v", p)
	}
}

// TestFailedSuccessor: a successor that took the presence over and ended leaves it to its predecessor, which goes on.
func TestFailedSuccessor(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	join(t, c, "a1b2c3")
	before := session(t, c, fleet.Presence{Instance: "1", Boot: "x", Store: "1:2"})
	if err := before.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, before)
	next := session(t, c, fleet.Presence{Instance: "2", Boot: "x", Store: "1:2"})
	if err := next.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	next.Close()
	etcdtest.Until(t, "the predecessor has the presence again", func() bool { return present(t, c).Instance == "1" && !before.Fenced() })
}

// TestRemovedHostIsFenced: a host whose record is gone is fenced when its lease is revoked or it rechecks, and stays so.
func TestRemovedHostIsFenced(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	join(t, c, "a1b2c3")
	s := session(t, c, fleet.Presence{Instance: "1"})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, s)
	if _, err := c.Delete(t.Context(), keys.Host("a1b2c3")); err != nil {
		t.Fatal(err)
	}
	s.Recheck()
	if !s.Fenced() {
		t.Error("not fenced after the call")
	}
	etcdtest.Until(t, "the session knows that the host was removed", func() bool { return errors.Is(s.Problem(), ErrRemoved) })
	if !s.Fenced() {
		t.Error("a removed host is not fenced")
	}
	join(t, c, "a1b2c3")
	etcdtest.Until(t, "a host that is a member again is not fenced", func() bool { return !s.Fenced() })
}

// TestBoxesOfAPresence: the number of boxes is written by the process that holds the presence alone.
func TestBoxesOfAPresence(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	join(t, c, "a1b2c3")
	s := session(t, c, fleet.Presence{Instance: "1", Boot: "x", Store: "1:2"})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Report(t.Context(), 7, true); err != nil || present(t, c).Boxes != 7 || !present(t, c).Cordoned {
		t.Fatal(err, present(t, c))
	}
	next := session(t, c, fleet.Presence{Instance: "2", Boot: "x", Store: "1:2"})
	if err := next.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Report(t.Context(), 9, false); err != nil || present(t, c).Instance != "2" || present(t, c).Boxes != 0 {
		t.Error(err, present(t, c))
	}
	before, err := c.Get(t.Context(), keys.Presence("a1b2c3"))
	if err != nil {
		t.Fatal(err)
	}
	if lease := before.Kvs[0].Lease; lease == 0 {
		t.Error("the presence has no lease")
	}
}

// TestUnreachableEtcd: a host starts without etcd, fenced, and joins in when etcd serves.
func TestUnreachableEtcd(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	join(t, server.Client(), "a1b2c3")
	server.Kill()
	s := session(t, server.Client(), fleet.Presence{Instance: "1"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Start(ctx); !errors.Is(err, fleet.ErrUnreachable) || !s.Fenced() {
		t.Fatalf("%v, fenced %v", err, s.Fenced())
	}
	run(t, s)
	server.Restart()
	etcdtest.Until(t, "the fence opens", func() bool { return !s.Fenced() })
}

// BenchmarkFenced measures the question of the data path.
func BenchmarkFenced(b *testing.B) {
	s := &Session{}
	b.ReportAllocs()
	for b.Loop() {
		if !s.Fenced() {
			b.Fatal("open")
		}
	}
}

// TestAnotherMembership: a session whose first claim found etcd away, as at a start without it, makes the checks of a start: a fleet that was
// founded again, a later protocol, a host that joined with the same ID since, and records that cannot be read leave it fenced.
func TestAnotherMembership(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	for name, x := range map[string]struct {
		founding, host any
		want           error
	}{
		"founded again":            {fleet.Founding{ID: "another"}, fleet.Host{ID: "a1b2c3", Key: key}, ErrReplaced},
		"another key":              {fleet.Founding{ID: founding}, fleet.Host{ID: "a1b2c3", Key: []byte("another")}, ErrReplaced},
		"the record of another":    {fleet.Founding{ID: founding}, fleet.Host{ID: "ffffff", Key: key}, ErrReplaced},
		"a fleet that is gone":     {nil, fleet.Host{ID: "a1b2c3", Key: key}, ErrRemoved},
		"a later protocol":         {fleet.Founding{ID: founding, Protocol: fleet.Protocol + 1}, fleet.Host{ID: "a1b2c3", Key: key}, ErrProtocol},
		"a host of a later one":    {fleet.Founding{ID: founding}, fleet.Host{ID: "a1b2c3", Key: key, Protocol: fleet.Protocol + 1}, ErrProtocol},
		"a host, not readable":     {fleet.Founding{ID: founding}, "a text", nil},
		"a founding, not readable": {"a text", fleet.Host{ID: "a1b2c3", Key: key}, nil},
	} {
		if write(t, c, keys.Host("a1b2c3"), x.host); x.founding != nil {
			write(t, c, keys.Founding(), x.founding)
		} else if _, err := c.Delete(t.Context(), keys.Founding()); err != nil {
			t.Fatal(err)
		}
		s := session(t, c, fleet.Presence{Instance: "1"})
		if err := s.keep(t.Context(), time.Minute); err == nil || x.want != nil && !errors.Is(err, x.want) || !s.Fenced() {
			t.Errorf("%s: %v, fenced %v", name, err, s.Fenced())
		}
	}
	if present(t, c).Instance != "" {
		t.Error("a presence was written")
	}
	if leases, err := c.Leases(t.Context()); err != nil || len(leases.Leases) > 0 {
		t.Errorf("%d leases of a host that is refused, %v", len(leases.Leases), err)
	}
}

// TestUnreadablePresence: a presence that cannot be read is another's.
func TestUnreadablePresence(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	join(t, c, "a1b2c3")
	write(t, c, keys.Presence("a1b2c3"), "a text")
	s := session(t, c, fleet.Presence{Instance: "1"})
	if err := s.Start(t.Context()); !errors.Is(err, ErrCloned) || !s.Fenced() {
		t.Error(err, s.Fenced())
	}
}

// TestLateAnswer: an answer that comes late extends the fence from when the keep-alive was sent, not from when it was answered.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	link := etcdtest.NewLink(t, server.Endpoint())
	c, err := fleet.Dial(fleet.Access{Endpoints: []string{link.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	join(t, c, "a1b2c3")
	s := session(t, c, fleet.Presence{Instance: "1"})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	link.Hold()
	sent, done := time.Now(), make(chan error, 1)
	go func() { done <- s.keep(t.Context(), time.Minute) }()
	etcdtest.Until(t, "the answer is late", func() bool { return time.Since(sent) > ttl/2 })
	link.Release()
	if err := <-done; err != nil || s.Left() > ttl-ttl/2 {
		t.Errorf("%v left of a TTL of %v, half of it after the keep-alive was sent; %v", s.Left(), ttl, err)
	}
}
