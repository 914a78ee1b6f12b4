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

// TestAttackExplainLooksUpDeniedNames: an explanation looks up what a query of the box would, and sends no name upstream that the
// policy denies. It grants the box no address.
func TestAttackExplainLooksUpDeniedNames(t *testing.T) {
	t.Parallel()
	z := newZone(t, "a.example.com. 60 IN A "+goodV4, "b.example.net. 60 IN A "+goodV4)
	b := newBench(t, policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"*.example.com"}, DeniedDomains: []string{"evil.example.com"}, AllowedCIDRs: []string{goodV4 + "/32"}, DNS: policy.DNSStrict}, z)
	pol := b.box.Policy.Load()
	for _, n := range []string{"evil.example.com", "secret.example.net", "example.com"} {
		if addrs, looked, err := b.Preview(t.Context(), b.box, pol, mustName(t, n)); looked || addrs != nil || err != nil {
			t.Errorf("%s: %v, %v, %v", n, addrs, looked, err)
		}
	}
	if asked := z.questions(); len(asked) != 0 {
		t.Errorf("upstream was asked %q", asked)
	}
	if addrs, looked, err := b.Preview(t.Context(), b.box, pol, mustName(t, "a.example.com")); !looked || err != nil || !slices.Equal(addrs, []netip.Addr{addr(goodV4)}) {
		t.Errorf("%v, %v, %v", addrs, looked, err)
	}
	if b.Granted(b.box.ID, mustName(t, "a.example.com"), addr(goodV4)) || len(b.events.all()) != 0 {
		t.Error("an explanation grants an address, or is recorded as a decision")
	}
	resolving := newBench(t, policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{goodV4 + "/32"}}, z)
	if addrs, looked, err := resolving.Preview(t.Context(), resolving.box, resolving.box.Policy.Load(), mustName(t, "b.example.net")); !looked || err != nil || len(addrs) != 1 {
		t.Errorf("a name that is resolved for its addresses: %v, %v, %v", addrs, looked, err)
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

// TestLookupText checks that only texts of the requested name are returned, through CNAMEs.
func TestLookupText(t *testing.T) {
	t.Parallel()
	z := newZone(t, `a.example.com. 60 IN TXT "one" "two"`, `a.example.com. 60 IN TXT "three"`, "b.example.com. 60 IN CNAME a.example.com.",
		"loop.example.com. 60 IN CNAME loop2.example.com.", "loop2.example.com. 60 IN CNAME loop.example.com.", "c.example.com. 60 IN A "+goodV4)
	b := newBench(t, policy.Spec{Mode: policy.ModeDenyAll}, z)
	for host, want := range map[string][]string{
		"a.example.com": {"onetwo", "three"}, "b.example.com": {"onetwo", "three"}, "c.example.com": nil, "none.example.com": nil,
	} {
		if got, err := b.LookupText(t.Context(), mustName(t, host)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q %v", host, got, err)
		}
	}
	if got, err := b.LookupText(t.Context(), mustName(t, "loop.example.com")); err == nil {
		t.Errorf("a loop: %q", got)
	}
	z.fail(errDown)
	if got, err := b.LookupText(t.Context(), mustName(t, "a.example.com")); err == nil {
		t.Errorf("no upstream answers, and yet %q", got)
	}
}
