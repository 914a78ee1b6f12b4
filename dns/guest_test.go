package dns

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
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

func TestRefusalsAreCountedNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("a.example.com"), newZone(t), Limits{QueriesPerSecond: 0.001, Burst: 1})
		b.ask(t, "b.example.com", mdns.TypeA)
		for range 50 {
			b.ask(t, "b.example.com", mdns.TypeA)
		}
		time.Sleep(time.Second)
		b.ask(t, "b.example.com", mdns.TypeA)
		all := b.events.all()
		if len(all) != 3 {
			t.Fatalf("%d events, want the answer and two of the limit: %+v", len(all), all)
		}
		wantEvent(t, all[1], policy.Deny, audit.ActionRefuse, policy.ReasonLimit)
		if all[1].Count != 1 || all[2].Count != 50 {
			t.Errorf("counts are %d and %d, want 1 and 50", all[1].Count, all[2].Count)
		}
	})
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
	b.guests.known.Range(func(k, _ any) bool { t.Errorf("state was made for %v", k); return true })
	b.ask(t, "a.example.com", mdns.TypeA)
	b.Forget("box1")
	b.guests.known.Range(func(k, _ any) bool { t.Errorf("state of %v was kept", k); return true })
}
