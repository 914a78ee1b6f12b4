package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
)

func TestGrantOutlivesTheTTLByAGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 30 IN A "+goodV4))
		b.ask(t, "a.example.com", mdns.TypeA)
		n := name(t, "a.example.com")
		time.Sleep(30*time.Second + grantGrace - time.Nanosecond)
		if !b.Granted("box1", n, addr(goodV4)) || !b.Granted("box1", n, addr("::ffff:"+goodV4)) {
			t.Error("the grant ended too early")
		}
		time.Sleep(time.Nanosecond)
		if b.Granted("box1", n, addr(goodV4)) || len(b.GrantedNames("box1", addr(goodV4))) > 0 {
			t.Error("the grant did not end")
		}
	})
}

func TestGrantIsThereBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 30 IN A "+goodV4))
	n := name(t, "a.example.com")
	b.audit = recorderFunc(func() {
		if !b.Granted("box1", n, addr(goodV4)) {
			t.Error("the decision was made without the grant")
		}
	})
	b.ask(t, "a.example.com", mdns.TypeA)
}

func TestSinkIsNoGrant(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("a.example.com"), newZone(t))
	b.ask(t, "b.example.com", mdns.TypeA)
	if b.Granted("box1", name(t, "b.example.com"), addr(sinkV4)) {
		t.Error("the sink was granted")
	}
	if b.Granted("box1", policy.Name{}, netip.Addr{}) || b.Granted("", policy.Name{}, addr(goodV4)) {
		t.Error("zero values were granted")
	}
}

func TestNamesOfAnAddressLatestFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("*.example.com"), newZone(t, "a.example.com. 30 IN A "+goodV4, "b.example.com. 300 IN A "+goodV4))
	b.ask(t, "a.example.com", mdns.TypeA)
	b.ask(t, "b.example.com", mdns.TypeA)
	b.ask(t, "a.example.com", mdns.TypeA)
	want := []policy.Name{name(t, "b.example.com"), name(t, "a.example.com")}
	if got := b.GrantedNames("box1", addr(goodV4)); !slices.Equal(got, want) {
		t.Errorf("names = %v, want %v", got, want)
	}
	b.Forget("box1")
	if got := b.GrantedNames("box1", addr(goodV4)); len(got) > 0 || b.grants.total != 0 {
		t.Errorf("a forgotten box has %v", got)
	}
}

func TestGrantsAreBounded(t *testing.T) {
	t.Parallel()
	g := newGrants(100, 250)
	now := time.Now()
	give := func(box policy.BoxID, i int) policy.Name {
		n := name(t, fmt.Sprintf("n%d.example.com", i))
		g.remember(box, n, []netip.Addr{addr(goodV4), addr(goodV6)}, now.Add(time.Minute))
		return n
	}
	quiet := give("quiet", 0)
	for i := range 500 {
		for _, box := range []policy.BoxID{"a", "b", "c"} {
			if n := give(box, i); !g.has(box, n, addr(goodV4), now) {
				t.Fatalf("grant %d of %s was not kept", i, box)
			}
		}
	}
	total := 0
	for id, b := range g.boxes {
		held := 0
		for _, list := range b.byAddr {
			held += len(list)
		}
		if held != b.order.Len() || held > 100 {
			t.Errorf("%s holds %d grants, %d in order", id, held, b.order.Len())
		}
		total += held
	}
	if total != g.total || total > 250 {
		t.Errorf("%d grants are held, %d counted, want at most 250", total, g.total)
	}
	if !g.has("quiet", quiet, addr(goodV4), now) {
		t.Error("a box with two grants paid for those with many")
	}
}

type recorderFunc func()

func (f recorderFunc) Record(audit.Event) { f() }
