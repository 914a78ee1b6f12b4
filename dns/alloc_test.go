package dns

import (
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/policy"
)

// TestDirectAnswersAllocateNothing checks that direct answers allocate no more than the event costs its recorder.
func TestDirectAnswersAllocateNothing(t *testing.T) {
	b := newBench(t, domains("*.example.com"), newZone(t, "a.example.com. 3600 IN A "+goodV4, "a.example.com. 3600 IN AAAA "+goodV6,
		"c.example.com. 3600 IN CNAME x.cdn.net.", "x.cdn.net. 3600 IN A "+goodV4b), Limits{QueriesPerSecond: 1e9, Burst: 1 << 30})
	b.zone.full = true
	b.audit = recorderFunc(func() {})
	d, out := new(scratch), make([]byte, 0, udpSize)
	for _, q := range []*mdns.Msg{newQuery("a.example.com", mdns.TypeA), newQuery("A.example.COM", mdns.TypeAAAA), newQuery("c.example.com", mdns.TypeA),
		newQuery("none.example.com", mdns.TypeA), newQuery("evil.org", mdns.TypeA), newQuery("evil.org", mdns.TypeTXT)} {
		b.exchange(t, q, policy.UDP) // fill the cache
		wire, _ := q.Pack()
		allocs := testing.AllocsPerRun(100, func() {
			v := b.usages.admit(b.boxAt(b.box.V4), time.Now())
			if _, ok := b.answerDirectly(t.Context(), v, policy.UDP, wire, d, out); !ok {
				t.Errorf("declined: %v", q.Question)
			}
			v.release()
		})
		if allocs > 0 {
			t.Errorf("%v: %v allocations", q.Question, allocs)
		}
	}
}
