package dns

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/policy"
)

func TestCacheCountsTTLsDownAndForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 60 IN A "+goodV4))
		ttl := func() uint32 { return b.ask(t, "A.example.com", mdns.TypeA).Answer[0].Header().Ttl }
		if got := ttl(); got != 60 {
			t.Errorf("TTL = %d, want 60", got)
		}
		time.Sleep(45 * time.Second)
		if got := ttl(); got != 15 {
			t.Errorf("TTL after 45 s = %d, want 15", got)
		}
		if n := len(b.zone.questions()); n != 1 {
			t.Errorf("upstream was asked %d times", n)
		}
		time.Sleep(15 * time.Second)
		if got := ttl(); got != 60 || len(b.zone.questions()) != 2 {
			t.Errorf("TTL = %d, asked %q; want a new answer", got, b.zone.questions())
		}
		time.Sleep(time.Hour)
		b.zone.fail(errDown)
		if m := b.ask(t, "a.example.com", mdns.TypeA); m.Rcode != mdns.RcodeServerFailure {
			t.Errorf("a stale answer was served:\n%v", m)
		}
		b.zone.fail(nil)
		time.Sleep(failureTTL)
		ttl()
	})
}

func TestTTLZeroIsOneSecond(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 0 IN A "+goodV4))
	if got := b.ask(t, "a.example.com", mdns.TypeA).Answer[0].Header().Ttl; got != 1 {
		t.Errorf("TTL = %d, want 1", got)
	}
}

func TestNegativeAnswersAreCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("*.example.com"), newZone(t))
		for range 3 {
			if m := b.ask(t, "none.example.com", mdns.TypeA); m.Rcode != mdns.RcodeNameError {
				t.Errorf("got\n%v", m)
			}
			time.Sleep(19 * time.Second)
		}
		if n := len(b.zone.questions()); n != 1 {
			t.Errorf("upstream was asked %d times in 57 s, want 1 (SOA minimum 60)", n)
		}
		time.Sleep(4 * time.Second)
		b.ask(t, "none.example.com", mdns.TypeA)
		if n := len(b.zone.questions()); n != 2 {
			t.Errorf("upstream was asked %d times, want 2", n)
		}
	})
}

func TestOneUpstreamQueryForManyWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 60 IN A "+goodV4))
		b.zone.before = func() { time.Sleep(time.Second) }
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { wantAddresses(t, b.ask(t, "a.example.com", mdns.TypeA), goodV4) })
		}
		wg.Wait()
		if n := len(b.zone.questions()); n != 1 {
			t.Errorf("upstream was asked %d times", n)
		}
	})
}

func TestCachedAnswersAreJudgedForEachBox(t *testing.T) {
	t.Parallel()
	b := newBench(t, policy.Spec{Mode: policy.ModeAllowAll}, newZone(t, "a.example.com. 60 IN A "+goodV4))
	wantAddresses(t, b.ask(t, "a.example.com", mdns.TypeA), goodV4)
	b.box = newBox(t, "box2", domains("other.example"))
	wantBlocked(t, b.ask(t, "a.example.com", mdns.TypeA), sinkV4)
	b.box = newBox(t, "box3", policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example.com"}, DeniedCIDRs: []string{goodV4 + "/32"}})
	wantBlocked(t, b.ask(t, "a.example.com", mdns.TypeA))
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("*.example.com"), newZone(t), Limits{CacheBytes: 64 << 10})
	for i := range 1000 {
		b.ask(t, fmt.Sprintf("n%d.example.com", i), mdns.TypeA)
	}
	if c := b.cache.answers; c.Cost() > 64<<10 || c.Len() < 10 {
		t.Errorf("the cache holds %d answers of %d bytes", c.Len(), c.Cost())
	}
}

func TestSlowUpstreamHoldsNoMoreThanTheLimits(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		limits                    Limits
		answered, failed, refused int
	}{
		{Limits{InFlight: 10}, 10, 0, 20},
		{Limits{Lookups: 4}, 4, 26, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, domains("*.example.com"), newZone(t), tc.limits)
			b.zone.before = func() { time.Sleep(time.Second) }
			var wg sync.WaitGroup
			rcodes := make([]int, 30)
			for i := range rcodes {
				wg.Go(func() { rcodes[i] = b.ask(t, fmt.Sprintf("n%d.example.com", i), mdns.TypeA).Rcode })
			}
			wg.Wait()
			count := map[int]int{}
			for _, rc := range rcodes {
				count[rc]++
			}
			if count[mdns.RcodeNameError] != tc.answered || count[mdns.RcodeServerFailure] != tc.failed || count[mdns.RcodeRefused] != tc.refused {
				t.Errorf("%+v: rcodes = %v", tc.limits, count)
			}
		})
	}
}
