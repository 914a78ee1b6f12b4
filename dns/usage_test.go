package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"

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
