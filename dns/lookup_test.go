package dns

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/policy"
	"boxgate/policy/name"
)

func TestLookupReturnsRawAddressesOfBothFamilies(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 60 IN CNAME b.cdn.net.",
		"b.cdn.net. 60 IN A 10.0.0.1", "b.cdn.net. 60 IN A "+goodV4, "b.cdn.net. 60 IN AAAA "+goodV6))
	got, err := b.Lookup(t.Context(), b.box, mustName(t, "a.example.com"))
	want := []netip.Addr{addr("10.0.0.1"), addr(goodV4), addr(goodV6)}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	asked := len(b.zone.questions())
	wantAddresses(t, b.ask(t, "a.example.com", mdns.TypeA), goodV4)
	if len(b.zone.questions()) != asked {
		t.Error("the cache is not shared")
	}
	if len(b.events.all()) != 1 {
		t.Error("Lookup decides nothing, and records nothing")
	}
}

func TestLookupFailures(t *testing.T) {
	t.Parallel()
	z := newZone(t, "text.example.com. 60 IN TXT x")
	b := newBench(t, policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"*.example.com"}, DeniedDomains: []string{"evil.example.com"}}, z)
	for _, n := range []string{"text.example.com", "none.example.com"} {
		if _, err := b.Lookup(t.Context(), b.box, mustName(t, n)); !errors.Is(err, ErrNoAddress) {
			t.Errorf("%s: %v", n, err)
		}
	}
	asked := len(z.questions())
	for _, lookup := range []func() ([]netip.Addr, error){
		func() ([]netip.Addr, error) { return b.Lookup(t.Context(), b.box, mustName(t, "evil.example.com")) },
		func() ([]netip.Addr, error) { return b.Lookup(t.Context(), b.box, name.Name{}) },
		func() ([]netip.Addr, error) { return b.Lookup(t.Context(), nil, mustName(t, "a.example.com")) },
	} {
		addrs, err := lookup()
		if _, ok := errors.AsType[*policy.DeniedError](err); !ok || addrs != nil {
			t.Errorf("got %v, %v; want a denial", addrs, err)
		}
	}
	if len(z.questions()) != asked {
		t.Errorf("upstream was asked %q", z.questions()[asked:])
	}
	z.fail(errDown)
	if _, err := b.Lookup(t.Context(), b.box, mustName(t, "down.example.com")); !errors.Is(err, errDown) {
		t.Errorf("got %v", err)
	}
}

func TestLookupHonoursItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 60 IN A "+goodV4))
		b.zone.before = func() { time.Sleep(time.Second) }
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		if _, err := b.Lookup(ctx, b.box, mustName(t, "a.example.com")); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 20*time.Millisecond {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		// The lookup continued for other callers.
		time.Sleep(2 * time.Second)
		b.zone.fail(errDown)
		wantAddresses(t, b.ask(t, "a.example.com", mdns.TypeA), goodV4)
	})
}

func TestLookupDoesNotWaitForASlowFamily(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		z := newZone(t, "a.example.com. 60 IN A "+goodV4)
		b := newBench(t, domains("a.example.com"), z)
		b.cache.upstream = exchangeFunc(func(n string, qtype uint16) (*mdns.Msg, error) {
			if qtype == mdns.TypeAAAA {
				time.Sleep(4 * time.Second)
			}
			return z.exchange(context.Background(), n, qtype)
		})
		start := time.Now()
		got, err := b.Lookup(t.Context(), b.box, mustName(t, "a.example.com"))
		if err != nil || len(got) != 1 || time.Since(start) != secondFamilyDelay {
			t.Errorf("got %v, %v after %v", got, err, time.Since(start))
		}
		time.Sleep(5 * time.Second)
	})
}
