package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

func TestQueryRateIsLimitedPerBox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 3600 IN A "+goodV4), Limits{QueriesPerSecond: 10, Burst: 20})
		served, refused := 0, 0
		for range 100 {
			switch m := b.ask(t, "a.example.com", mdns.TypeA); m.Rcode {
			case mdns.RcodeSuccess:
				served++
			case mdns.RcodeRefused:
				refused++
				if ede(m) == -1 || len(m.Answer) > 0 {
					t.Errorf("got\n%v", m)
				}
			}
		}
		if served != 20 || refused != 80 {
			t.Errorf("%d served, %d refused; want 20 and 80", served, refused)
		}
		other := &bench{Server: b.Server, box: newBox(t, "box2", domains("a.example.com"))}
		wantAddresses(t, other.ask(t, "a.example.com", mdns.TypeA), goodV4)
		time.Sleep(time.Second)
		wantAddresses(t, b.ask(t, "a.example.com", mdns.TypeA), goodV4)
	})
}

// A box can have its own rate, which can change at any time.
func TestQueryRateOfOneBoxIsItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 3600 IN A "+goodV4), Limits{QueriesPerSecond: 10, Burst: 20})
		served := func() (n int) {
			for range 300 {
				if b.ask(t, "a.example.com", mdns.TypeA).Rcode == mdns.RcodeSuccess {
					n++
				}
			}
			return n
		}
		for _, c := range []struct{ own, want int64 }{{0, 20}, {100, 200}, {3, 6}, {0, 20}} {
			b.box.Limits.Store(policy.Limits{policy.LimitDNSQueries: c.own})
			served()
			time.Sleep(time.Minute)
			if n := served(); n != int(c.want) {
				t.Errorf("with a rate of %d, %d are served at once, want %d", c.own, n, c.want)
			}
		}
	})
}

// The first refusal is recorded immediately. The refusals of the following second are recorded together: at its end, when the
// box is forgotten, or when the server stops.
func TestRefusalsAreCoalesced(t *testing.T) {
	t.Parallel()
	limits := Limits{QueriesPerSecond: 0.001, Burst: 1}
	for label, end := range map[string]func(*testing.T, *bench){
		"the second ends":    func(*testing.T, *bench) { time.Sleep(coalesceInterval) },
		"the box is deleted": func(_ *testing.T, b *bench) { b.Forget(b.box.ID) },
		"ServeUDP returns": func(t *testing.T, b *bench) {
			pc, err := net.ListenPacket("udp", "127.0.0.1:0")
			stopped(t, err, func(ctx context.Context) error { return b.ServeUDP(ctx, pc) })
		},
		"ServeTCP returns": func(t *testing.T, b *bench) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			stopped(t, err, func(ctx context.Context) error { return b.ServeTCP(ctx, ln) })
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, domains("a.example.com"), newZone(t), limits)
			for range 52 {
				b.ask(t, "b.example.com", mdns.TypeA)
			}
			if n := len(b.events.all()); n != 2 {
				t.Fatalf("%d events at first, want the answer and one refusal", n)
			}
			end(t, b)
			synctest.Wait()
			all := b.events.all()
			if len(all) != 3 {
				t.Fatalf("%d events once %s, want one more", len(all), label)
			}
			wantEvent(t, all[2], policy.Deny, audit.ActionRefuse, name.ReasonLimit)
			if all[1].Count != 1 || all[2].Count != 50 {
				t.Errorf("once %s, counts are %d and %d, want 1 and 50", label, all[1].Count, all[2].Count)
			}
			time.Sleep(10 * coalesceInterval)
			if n := len(b.events.all()); n != 3 {
				t.Errorf("%d events later, want no more", n)
			}
		})
	}
}

// stopped runs serve with a context that has ended. err is from opening the socket.
func stopped(t *testing.T, err error, serve func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err = errors.Join(err, serve(ctx)); err != nil {
		t.Fatal(err)
	}
}

func TestUnknownSourcesHaveNoStateOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("a.example.com"), newZone(t))
	wire, _ := newQuery("a.example.com", mdns.TypeA).Pack()
	for range 100 {
		if m := unpack(t, b.Handle(context.Background(), nil, policy.UDP, wire)); m.Rcode != mdns.RcodeRefused {
			t.Errorf("got\n%v", m)
		}
	}
	b.usages.known.Range(func(k, _ any) bool { t.Errorf("state was made for %v", k); return true })
	b.ask(t, "a.example.com", mdns.TypeA)
	b.Forget("box1")
	b.usages.known.Range(func(k, _ any) bool { t.Errorf("state of %v was kept", k); return true })
}

// noBox is a registry whose boxes have all been removed.
type noBox struct{}

func (noBox) BoxByAddr(netip.Addr) *policy.Box { return nil }

// A query in progress while its box is removed leaves no state of the box behind, whether or not the answer was cached.
func TestQueryOfARemovedBoxLeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("*.example.com"), newZone(t, "a.example.com. 60 IN A "+goodV4, "b.example.com. 60 IN A "+goodV4))
	b.ask(t, "a.example.com", mdns.TypeA)
	b.boxes, b.usages.boxes = noBox{}, noBox{}
	b.Forget("box1")
	for _, host := range []string{"a.example.com", "b.example.com"} {
		b.ask(t, host, mdns.TypeA)
		b.usages.known.Range(func(k, _ any) bool { t.Errorf("after a query for %s, usage of %v is kept", host, k); return true })
		if names := b.GrantedNames("box1", addr(goodV4)); len(names) > 0 || len(b.grants.boxes) > 0 {
			t.Errorf("after a query for %s, grants are kept: %v", host, names)
		}
	}
}

// TestFloodIsCountedAndNotAnswered checks that over the limit, as many queries are refused with an answer as are
// served, and that the rest are only counted.
func TestFloodIsCountedAndNotAnswered(t *testing.T) {
	t.Parallel()
	const burst, flood = 5, 300
	l := newLive(t, domains("a.example.com"), newZone(t), Limits{QueriesPerSecond: 0.001, Burst: burst})
	l.ask(t, "udp", "b.example.com", mdns.TypeA) // afterwards the server is up and its receive buffer enlarged
	const served = burst - 1
	conn, err := net.Dial("udp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wire, err := newQuery("b.example.com", mdns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	for range flood {
		if _, err := conn.Write(wire); err != nil {
			t.Fatal(err)
		}
	}
	over := func() (n uint64) {
		for _, ev := range l.events.all() {
			if ev.Reason == name.ReasonLimit {
				n += ev.Count
			}
		}
		return n
	}
	for deadline := time.Now().Add(time.Minute); over() < flood-served; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d queries are accounted for", over(), flood-served)
		}
	}
	// Exactly the due answers arrive.
	buf := make([]byte, 512)
	for n := 1; ; n++ {
		wait := time.Minute
		if n > served+burst {
			wait = 20 * time.Millisecond
		}
		if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(buf); err != nil {
			if n <= served+burst {
				t.Errorf("answer %d of %d: %v", n, served+burst, err)
			}
			break
		}
		if n > served+burst {
			t.Errorf("answer %d, where %d are due", n, served+burst)
		}
	}
	for deadline := time.Now().Add(time.Minute); l.usages.usageOf(l.box).inFlight.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("queries are still counted as under way")
		}
	}
}

// withoutDescriptors calls f while the process has no free file descriptor.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	free, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(free)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free), Max: before.Max}); err != nil { // all lower ones are in use
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}()
	if _, err := os.Open(os.DevNull); !errors.Is(err, unix.EMFILE) {
		t.Errorf("a file can be opened, or not for another reason: %v", err)
	}
	f()
}

// TestAServerEndsWithoutDescriptors checks that a server without free descriptors still ends its reads. Otherwise a
// gateway would read the queries of its successor, under policies that no longer change. The limit applies to the
// process, so no other test may run at the same time.
func TestAServerEndsWithoutDescriptors(t *testing.T) { //nolint:paralleltest // see above
	for name, stop := range stopping {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // see above
			p := newPassing(t)
			b := newBench(t, domains("a.example.com"), newZone(t))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := p.serve(ctx, t, b.Server)
			p.ask(t, "denied.example.com", 0, 1)
			if err := p.answers(0, 1, answered); err != nil {
				t.Fatal(err)
			}
			withoutDescriptors(t, func() {
				stop(b.Server, cancel)
				ended(t, "the server", done)
			})
			if state := p.state(t); state != 0 {
				t.Errorf("nothing has arrived, and the socket is in the state %#x", state)
			}
		})
	}
}
