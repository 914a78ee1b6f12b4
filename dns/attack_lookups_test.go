package dns

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"
)

// A box whose connections wait for names that are never answered does not take the slots of other boxes.
func TestAttackLookupsOfOneBoxLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("*.example.com"), newZone(t, "a.example.com. 60 IN A "+goodV4, "a.example.com. 60 IN AAAA "+goodV6),
			Limits{Lookups: 100, InFlight: 10})
		b.zone.before = func() { time.Sleep(2 * time.Second) }
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() { _, _ = b.Lookup(t.Context(), b.box, mustName(t, fmt.Sprintf("n%d.example.com", i))) })
		}
		synctest.Wait()
		other := newBox(t, "box2", domains("*.example.com"))
		if addrs, err := b.Lookup(t.Context(), other, mustName(t, "a.example.com")); err != nil {
			t.Errorf("another box got %v, %v", addrs, err)
		}
		// The first box's limit must not fail the other's question.
		if addrs, err := b.Lookup(t.Context(), other, mustName(t, "n199.example.com")); err == nil || len(addrs) > 0 {
			t.Errorf("%v, %v", addrs, err)
		}
		wg.Wait()
	})
}

// withoutIPv6 fails AAAA questions after a delay.
type withoutIPv6 struct{ exchanger }

func (w withoutIPv6) exchange(ctx context.Context, name string, qtype uint16) (*mdns.Msg, error) {
	if qtype == mdns.TypeAAAA {
		time.Sleep(time.Second)
		return nil, errDown
	}
	return w.exchanger.exchange(ctx, name, qtype)
}

// LookupBoth does not return half of a name's addresses as if they were all.
func TestLookupBothFailsWithEitherFamily(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("*.example.com"), newZone(t, "a.example.com. 60 IN A "+goodV4, "a.example.com. 60 IN AAAA "+goodV6))
		whole := b.cache.upstream
		b.cache.upstream = withoutIPv6{whole}
		addrs, err := b.LookupBoth(t.Context(), b.box, mustName(t, "a.example.com"))
		if err == nil || len(addrs) != 1 || addrs[0].String() != goodV4 {
			t.Errorf("%v, %v; want the IPv4 address and an error", addrs, err)
		}
		b.cache.upstream = whole
		time.Sleep(2 * failureTTL)
		if addrs, err = b.LookupBoth(t.Context(), b.box, mustName(t, "a.example.com")); err != nil || len(addrs) != 2 {
			t.Errorf("%v, %v", addrs, err)
		}
	})
}
