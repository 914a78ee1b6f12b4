package dns

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/policy/name"
)

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
