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
	"boxgate/policy/name"
)

func TestGrantOutlivesTheTTLByAGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 30 IN A "+goodV4))
		b.ask(t, "a.example.com", mdns.TypeA)
		n := mustName(t, "a.example.com")
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

// A grant lasts as long as its connections, and a grace after the last; a connection does not renew an expired grant.
func TestGrantOutlivesItsConnectionsByAGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("*.example.com"), newZone(t, "a.example.com. 1 IN A "+goodV4, "b.example.com. 1 IN A "+goodV4))
		b.ask(t, "a.example.com", mdns.TypeA)
		b.ask(t, "b.example.com", mdns.TypeA)
		n, other := mustName(t, "a.example.com"), mustName(t, "b.example.com")
		first, second := b.RetainGrant("box1", n, addr(goodV4)), b.RetainGrant("box1", n, addr("::ffff:"+goodV4))
		for _, none := range []func(){
			b.RetainGrant("box2", n, addr(goodV4)), b.RetainGrant("box1", n, addr(goodV6)), b.RetainGrant("box1", name.Name{}, addr(goodV4)),
		} {
			if none != nil {
				t.Error("what was not granted is held")
			}
		}
		time.Sleep(24 * time.Hour)
		if !b.Granted("box1", n, addr(goodV4)) || b.Granted("box1", other, addr(goodV4)) {
			t.Error("the grant of an open connection has ended, or another has not")
		}
		if got := b.GrantedNames("box1", addr(goodV4)); !slices.Equal(got, []name.Name{n}) {
			t.Errorf("names %v", got)
		}
		first()
		time.Sleep(2 * grantGrace)
		if !b.Granted("box1", n, addr(goodV4)) {
			t.Error("the grant ended with the first of two connections")
		}
		second()
		time.Sleep(grantGrace - time.Nanosecond)
		if !b.Granted("box1", n, addr(goodV4)) {
			t.Error("the grant ended too early")
		}
		time.Sleep(time.Nanosecond)
		if b.Granted("box1", n, addr(goodV4)) || b.RetainGrant("box1", n, addr(goodV4)) != nil {
			t.Error("the grant did not end")
		}
	})
}

func TestLeastTimeOfAGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("*.example.com"), newZone(t, "a.example.com. 1 IN A "+goodV4, "b.example.com. 7200 IN A "+goodV4))
		b.minGrant = time.Hour
		for range 2 { // from upstream, then from the cache
			b.ask(t, "a.example.com", mdns.TypeA)
			b.ask(t, "b.example.com", mdns.TypeA)
		}
		time.Sleep(time.Hour - time.Nanosecond)
		if !b.Granted("box1", mustName(t, "a.example.com"), addr(goodV4)) {
			t.Error("the grant ended too early")
		}
		time.Sleep(time.Minute)
		if b.Granted("box1", mustName(t, "a.example.com"), addr(goodV4)) || !b.Granted("box1", mustName(t, "b.example.com"), addr(goodV4)) {
			t.Error("the grant did not end, or one of a longer TTL has")
		}
	})
}

// Connections that never end keep no more grants than the limit, and expired grants are dropped around them.
func TestHeldGrantsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGrants(10, 100)
		give := func(i int, life time.Duration) name.Name {
			n := mustName(t, fmt.Sprintf("n%d.example.com", i))
			g.remember("box", n, []netip.Addr{addr(goodV4)}, time.Now().Add(life))
			return n
		}
		var release []func()
		for i := range 5 {
			release = append(release, g.retain("box", give(i, time.Second), addr(goodV4)))
		}
		for i := 5; i < 9; i++ {
			give(i, time.Second)
		}
		time.Sleep(time.Minute)
		give(9, time.Hour)
		if b := g.boxes["box"]; b.order.Len() != 6 || g.total != 6 {
			t.Errorf("%d grants are kept, of 5 that are held and a new one", b.order.Len())
		}
		for i := 10; i < 50; i++ {
			n := give(i, time.Hour)
			release = append(release, g.retain("box", n, addr(goodV4)))
			if b := g.boxes["box"]; b.order.Len() > 10 || g.total != b.order.Len() || !g.contains("box", n, addr(goodV4), time.Now()) {
				t.Fatalf("%d grants, %d counted", b.order.Len(), g.total)
			}
		}
		for _, r := range release { // most of their grants have been evicted
			r()
		}
		if g.contains("box", mustName(t, "n0.example.com"), addr(goodV4), time.Now()) || g.total != 10 {
			t.Errorf("%d grants after the connections have ended", g.total)
		}
	})
}

func TestGrantIsThereBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 30 IN A "+goodV4))
	n := mustName(t, "a.example.com")
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
	if b.Granted("box1", mustName(t, "b.example.com"), addr(sinkV4)) {
		t.Error("the sink was granted")
	}
	if b.Granted("box1", name.Name{}, netip.Addr{}) || b.Granted("", name.Name{}, addr(goodV4)) {
		t.Error("zero values were granted")
	}
}

func TestNamesOfAnAddressLatestFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("*.example.com"), newZone(t, "a.example.com. 30 IN A "+goodV4, "b.example.com. 300 IN A "+goodV4))
	b.ask(t, "a.example.com", mdns.TypeA)
	b.ask(t, "b.example.com", mdns.TypeA)
	b.ask(t, "a.example.com", mdns.TypeA)
	want := []name.Name{mustName(t, "b.example.com"), mustName(t, "a.example.com")}
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
	give := func(box policy.BoxID, i int) name.Name {
		n := mustName(t, fmt.Sprintf("n%d.example.com", i))
		g.remember(box, n, []netip.Addr{addr(goodV4), addr(goodV6)}, now.Add(time.Minute))
		return n
	}
	quiet := give("quiet", 0)
	for i := range 500 {
		for _, box := range []policy.BoxID{"a", "b", "c"} {
			if n := give(box, i); !g.contains(box, n, addr(goodV4), now) {
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
	if !g.contains("quiet", quiet, addr(goodV4), now) {
		t.Error("a box with two grants paid for those with many")
	}
}

type recorderFunc func()

func (f recorderFunc) Record(audit.Event) { f() }

// TestNameOfTheSink checks that the name that was last answered to a box with the sink is known for a moment, unless another name
// was answered with it, too.
func TestNameOfTheSink(t *testing.T) {
	t.Parallel()
	a, b := mustName(t, "a.example"), mustName(t, "b.example")
	now := time.Now()
	var s sinkTracker
	steps := []struct {
		note  name.Name
		after time.Duration
		want  []name.Name
	}{
		{name.Name{}, 0, nil}, {a, 0, []name.Name{a}}, {a, time.Second, []name.Name{a}}, {b, time.Second, nil},
		{b, sinkGrace, []name.Name{b}}, {a, time.Second, nil}, {name.Name{}, 2 * sinkGrace, nil},
	}
	for i, step := range steps {
		now = now.Add(step.after)
		if !step.note.IsZero() {
			s.recordName(step.note, now)
		}
		if got := s.onlyName(now); !slices.Equal(got, step.want) {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}

// TestSinkIsNamed covers both paths of answering, and another box.
func TestSinkIsNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("a.example.com"), newZone(t))
	for _, qtype := range []uint16{mdns.TypeA, mdns.TypeAAAA} {
		b.ask(t, "denied.example.net", qtype)
		for _, sink := range []netip.Addr{b.sinkV4, b.sinkV6} {
			if got := b.GrantedNames(b.box.ID, sink); len(got) != 1 || got[0].String() != "denied.example.net" {
				t.Errorf("the sink is for %v", got)
			}
		}
	}
	if got := b.GrantedNames("another", b.sinkV4); len(got) != 0 {
		t.Errorf("of another box it is for %v", got)
	}
}

// A connection to the sink is for a service only if it cannot be for a denied name, and services do not hide one another.
func TestSinkNamesOfServices(t *testing.T) {
	parse := func(s string) name.Name {
		n, err := name.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var s sinkTracker
	now := time.Now()
	db, cache := parse("db.service.boxgate.internal"), parse("cache.service.boxgate.internal")
	s.recordService(db)
	s.recordService(cache)
	s.recordService(db)
	if got := s.names(now); !slices.Equal(got, []name.Name{db, cache}) {
		t.Errorf("after services: %v", got)
	}
	s.recordName(parse("denied.example"), now)
	if got := s.names(now); !slices.Equal(got, []name.Name{parse("denied.example"), db, cache}) {
		t.Errorf("after a denied name: %v", got)
	}
	s.recordName(parse("other.example"), now)
	if got := s.names(now); !slices.Equal(got, []name.Name{{}, db, cache}) {
		t.Errorf("after two denied names: %v", got)
	}
	if got := s.names(now.Add(sinkGrace + time.Second)); !slices.Equal(got, []name.Name{db, cache}) {
		t.Errorf("some time after denied names: %v", got)
	}
	for i := range 2 * maxSinkServices {
		s.recordService(parse(string(rune('a'+i%26)) + string(rune('a'+i/26)) + ".service.boxgate.internal"))
	}
	if got := len(s.names(now.Add(time.Minute))); got != maxSinkServices {
		t.Errorf("%d services are remembered", got)
	}
}
