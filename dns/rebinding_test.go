package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

type exchangeFunc func(name string, qtype uint16) (*mdns.Msg, error)

func (f exchangeFunc) exchange(_ context.Context, name string, qtype uint16) (*mdns.Msg, error) {
	return f(name, qtype)
}

var badV4 = []string{"127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "198.18.0.1", "224.0.0.1", "255.255.255.255"}

var badV6 = []string{"::1", "::", "fe80::1", "fd00::1", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
	"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2002:7f00:1::1", "2002:a9fe:a9fe::"}

func TestRebindingToProtectedAddress(t *testing.T) {
	t.Parallel()
	for _, spec := range []policy.Spec{{Mode: policy.ModeAllowAll}, domains("r.example.com")} {
		for _, tc := range []struct {
			qtype uint16
			bad   []string
		}{{mdns.TypeA, badV4}, {mdns.TypeAAAA, badV6}} {
			for _, bad := range tc.bad {
				b := newBench(t, spec, newZone(t, record("r.example.com.", tc.qtype, bad)))
				wantBlocked(t, b.ask(t, "r.example.com", tc.qtype))
				ev := b.events.last(t)
				wantEvent(t, ev, policy.Deny, audit.ActionRefuse, name.ReasonProtectedRange)
				if len(b.GrantedNames("box1", addr(bad))) > 0 {
					t.Errorf("%s was granted", bad)
				}
			}
		}
	}
}

func record(owner string, qtype uint16, a string) string {
	return fmt.Sprintf("%s 30 IN %s %s", owner, mdns.TypeToString[qtype], a)
}

func TestRebindingOnTheSecondLookup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, domains("r.example.com"), newZone(t, "r.example.com. 0 IN A "+goodV4))
		wantAddresses(t, b.ask(t, "r.example.com", mdns.TypeA), goodV4)
		b.zone.set(t, "r.example.com. 0 IN A 169.254.169.254")
		time.Sleep(time.Second)
		wantBlocked(t, b.ask(t, "r.example.com", mdns.TypeA))
	})
}

func TestOnlyGoodAddressesAmongBad(t *testing.T) {
	t.Parallel()
	b := newBench(t, policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"m.example.com"}, DeniedCIDRs: []string{goodV4b + "/32"}},
		newZone(t, "m.example.com. 60 IN A 127.0.0.1", "m.example.com. 60 IN A "+goodV4b, "m.example.com. 60 IN A "+goodV4, "m.example.com. 60 IN A 10.0.0.1"))
	wantAddresses(t, b.ask(t, "m.example.com", mdns.TypeA), goodV4)
	wantEvent(t, b.events.last(t), policy.Allow, audit.ActionForward, name.ReasonAllowedDomain)
	for _, bad := range []string{"127.0.0.1", goodV4b, "10.0.0.1"} {
		if b.Granted("box1", mustName(t, "m.example.com"), addr(bad)) {
			t.Errorf("%s was granted", bad)
		}
	}
}

func TestCNAMEToPrivateAddress(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		z := newZone(t, "c.example.com. 60 IN CNAME internal.corp.", "internal.corp. 60 IN A 10.0.0.5")
		z.full = full
		b := newBench(t, domains("c.example.com"), z)
		wantBlocked(t, b.ask(t, "c.example.com", mdns.TypeA))
		wantEvent(t, b.events.last(t), policy.Deny, audit.ActionRefuse, name.ReasonProtectedRange)
	}
}

func TestCNAMEChainIsFollowed(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		z := newZone(t, "a.example.com. 300 IN CNAME b.cdn.net.", "b.cdn.net. 20 IN CNAME c.cdn.net.", "c.cdn.net. 600 IN A "+goodV4)
		z.full = full
		b := newBench(t, domains("a.example.com"), z)
		m := b.ask(t, "a.example.com", mdns.TypeA)
		wantAddresses(t, m, goodV4)
		if len(m.Answer) != 3 || m.Answer[2].Header().Name != "c.cdn.net." || m.Answer[2].Header().Ttl != 600 {
			t.Errorf("got\n%v", m)
		}
		if !b.Granted("box1", mustName(t, "a.example.com"), addr(goodV4)) || b.Granted("box1", mustName(t, "c.cdn.net"), addr(goodV4)) {
			t.Error("want a grant for the name asked, and only for it")
		}
		// The box did not ask for the names of the chain, so they are not allowed on their own.
		wantBlocked(t, b.ask(t, "c.cdn.net", mdns.TypeA), sinkV4)
		// No record of the other type at the end of the chain.
		if m := b.ask(t, "a.example.com", mdns.TypeAAAA); len(m.Answer) != 2 || m.Rcode != mdns.RcodeSuccess {
			t.Errorf("got\n%v", m)
		}
	}
}

func TestCNAMEToDeniedName(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		z := newZone(t, "a.example.com. 60 IN CNAME b.example.com.", "b.example.com. 60 IN CNAME x.evil.net.", "x.evil.net. 60 IN A "+goodV4)
		z.full = full
		spec := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"*.example.com"}, DeniedDomains: []string{"*.evil.net"}}
		b := newBench(t, spec, z)
		wantBlocked(t, b.ask(t, "a.example.com", mdns.TypeA))
		ev := b.events.last(t)
		wantEvent(t, ev, policy.Deny, audit.ActionRefuse, name.ReasonDeniedDomain)
		if ev.Rule != "*.evil.net" || ev.Name != "a.example.com" {
			t.Errorf("event = %+v", ev)
		}
		if !full && slices.Contains(z.questions(), "x.evil.net. A") {
			t.Error("the denied name was asked for")
		}
		_, err := b.Lookup(t.Context(), b.box, mustName(t, "a.example.com"))
		if _, ok := errors.AsType[*policy.DeniedError](err); !ok {
			t.Errorf("Lookup: %v, want a denial", err)
		}
	}
}

// TestCNAMEToException: with precedence: specific a chain may lead to the exception of a denied zone, and to no other name in it. An
// exception is resolved, and its denied address is left out.
func TestCNAMEToException(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		z := newZone(t, "a.example.com. 60 IN CNAME ok.evil.net.", "ok.evil.net. 60 IN A "+goodV4, "b.example.com. 60 IN CNAME x.ok.evil.net.",
			"x.ok.evil.net. 60 IN A "+goodV4, "two.evil.net. 60 IN A "+goodV4, "two.evil.net. 60 IN A 9.9.9.8")
		z.full = full
		b := newBench(t, policy.Spec{Mode: policy.ModeCustom, Precedence: policy.PrecedenceSpecific, AllowedDomains: []string{"*", "ok.evil.net", "two.evil.net"},
			DeniedDomains: []string{"*.evil.net"}, AllowedCIDRs: []string{"9.9.9.9"}, DeniedCIDRs: []string{"9.9.9.0/24"}}, z)
		wantAddresses(t, b.ask(t, "a.example.com", mdns.TypeA), goodV4)
		wantAddresses(t, b.ask(t, "ok.evil.net", mdns.TypeA), goodV4)
		wantAddresses(t, b.ask(t, "two.evil.net", mdns.TypeA), goodV4)
		wantBlocked(t, b.ask(t, "b.example.com", mdns.TypeA))
		wantEvent(t, b.events.last(t), policy.Deny, audit.ActionRefuse, name.ReasonDeniedDomain)
		if !full && slices.Contains(z.questions(), "x.ok.evil.net. A") {
			t.Error("the denied name was asked for")
		}
	}
}

func TestCNAMELoopsAndLongChainsEnd(t *testing.T) {
	t.Parallel()
	var long []string
	for i := range 40 {
		long = append(long, fmt.Sprintf("n%d.example.com. 60 IN CNAME n%d.example.com.", i, i+1))
	}
	long = append(long, "n40.example.com. 60 IN A "+goodV4)
	for _, full := range []bool{false, true} {
		for what, lines := range map[string][]string{
			"self": {"n0.example.com. 60 IN CNAME n0.example.com."},
			"two":  {"n0.example.com. 60 IN CNAME n1.example.com.", "n1.example.com. 60 IN CNAME n0.example.com."},
			"long": long,
			"name": {`n0.example.com. 60 IN CNAME a\.b.example.com.`, `a\.b.example.com. 60 IN A ` + goodV4},
		} {
			z := newZone(t, lines...)
			z.full = full
			b := newBench(t, domains("*.example.com"), z)
			if m := b.ask(t, "n0.example.com", mdns.TypeA); m.Rcode != mdns.RcodeServerFailure || len(m.Answer) > 0 {
				t.Errorf("%s: got\n%v", what, m)
			}
			wantEvent(t, b.events.last(t), policy.Deny, audit.ActionRefuse, name.ReasonUnresolved)
			if n := len(z.questions()); n > maxQuestions {
				t.Errorf("%s: upstream was asked %d times", what, n)
			}
		}
	}
}

// A cached answer is checked for another box's query too, including its chain.
func TestCachedChainToDeniedName(t *testing.T) {
	t.Parallel()
	z := newZone(t, "a.example.com. 60 IN CNAME x.evil.net.", "x.evil.net. 60 IN A "+goodV4)
	z.full = true
	b := newBench(t, policy.Spec{Mode: policy.ModeAllowAll}, z)
	wantAddresses(t, b.ask(t, "a.example.com", mdns.TypeA), goodV4)
	b.box = newBox(t, "box2", policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"*.example.com"}, DeniedDomains: []string{"*.evil.net"}})
	wantBlocked(t, b.ask(t, "a.example.com", mdns.TypeA))
	wantEvent(t, b.events.last(t), policy.Deny, audit.ActionRefuse, name.ReasonDeniedDomain)
}

// No name of a service is sent upstream, even if the policy allows addresses or an alias points to it.
func TestServicesAreNotAskedUpstream(t *testing.T) {
	t.Parallel()
	const db = "db.service.boxgate.internal"
	z := newZone(t, "a.example.com. 60 IN CNAME "+db+".", db+". 60 IN A "+goodV4)
	b := newBench(t, policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{goodV4}}, z)
	wantBlocked(t, b.ask(t, db, mdns.TypeA), sinkV4)
	wantBlocked(t, b.ask(t, "DB.Service.Boxgate.Internal", mdns.TypeA), sinkV4)
	if m := b.ask(t, "a.example.com", mdns.TypeA); len(m.Answer) > 0 && m.Rcode == mdns.RcodeSuccess {
		t.Errorf("an alias of a service has the answer\n%v", m)
	}
	if addrs, err := b.Lookup(t.Context(), b.box, mustName(t, db)); err == nil {
		t.Errorf("a lookup found %v", addrs)
	}
	for _, q := range z.questions() {
		if strings.HasPrefix(q, db) {
			t.Errorf("upstream was asked for %s", q)
		}
	}
}
