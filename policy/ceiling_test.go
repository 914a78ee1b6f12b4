package policy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// underCeiling compiles both policies, and the ceiling as a policy of its own.
func underCeiling(in, top interpreter) (both, own, ceiling *Compiled) {
	for i := range top.spec.Rules {
		top.spec.Rules[i].Action = match.ActionDeny
	}
	own = in.compile()
	above, err := NewCeiling(top.spec)
	if own == nil || err != nil {
		return nil, nil, nil
	}
	both, err = Compile(in.spec, Options{Version: own.version, Headers: in.headers, Protected: own.protected, Ceiling: above})
	if err != nil {
		panic(err)
	}
	ceiling, err = Compile(top.spec, Options{Version: own.version, Protected: &name.Protected{}})
	if err != nil {
		panic(err)
	}
	return both, own, ceiling
}

// fuzzUnderCeiling has test look at random policies under random ceilings.
func fuzzUnderCeiling(f *testing.F, stream uint64, test func(t *testing.T, r random, in, top interpreter, both, own, ceiling *Compiled)) {
	for seed := range nightly.Size[uint64](30, 300) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := random{rand.New(rand.NewPCG(seed, stream))}
		in, top := r.interpreter(), r.interpreter()
		if both, own, ceiling := underCeiling(in, top); both != nil {
			test(t, r, in, top, both, own, ceiling)
		}
	})
}

// FuzzCeiling: below a ceiling, a policy allows exactly the requests that both allow, goes to a name's own address where one of
// them demands it, and lets the kernel forward only packets that both would forward.
func FuzzCeiling(f *testing.F) {
	fuzzUnderCeiling(f, 7, func(t *testing.T, r random, in, top interpreter, both, own, ceiling *Compiled) {
		checkShape(t, both.Kernel())
		for range 50 {
			req := r.request()
			got, a, b := both.Decide(req), own.Decide(req), ceiling.Decide(req)
			if got.Allowed() != (a.Allowed() && b.Allowed()) {
				t.Fatalf("%+v under %+v: %+v is %+v; the policy says %+v, the ceiling %+v", in.spec, top.spec, req, got, a, b)
			}
			if got.Allowed() && got.DialName != (a.DialName || b.DialName) {
				t.Fatalf("%+v under %+v: %+v is %+v; the policy says %+v, the ceiling %+v", in.spec, top.spec, req, got, a, b)
			}
			addr := netip.MustParseAddr(pick(r, someAddrs)).WithZone("")
			port, proto := pick(r, somePorts), pick(r, []Protocol{TCP, UDP, ICMP})
			checkFateUnder(t, both, own, ceiling, addr, port, proto)
		}
	})
}

func checkFateUnder(t *testing.T, both, own, ceiling *Compiled, a netip.Addr, port uint16, proto Protocol) {
	t.Helper()
	if a.Is4In6() {
		return // the kernel never sees one
	}
	got := simulate(both.Kernel(), a, port, proto)
	one, other := simulate(own.Kernel(), a, port, proto), simulate(ceiling.Kernel(), a, port, proto)
	if (got == forwarded) != (one == forwarded && other == forwarded) {
		t.Fatalf("%+v under %+v: the kernel has %s port %d %s %s; the policy has it %s, the ceiling %s", own.spec, ceiling.spec, a, port, proto, got, one, other)
	}
	if forwards := both.Forwards(a, port, proto); got != forwarded && forwards {
		t.Fatalf("%+v under %+v: Forwards says true of %s port %d %s, which is %s", own.spec, ceiling.spec, a, port, proto, got)
	}
	for _, s := range someNames {
		n, _ := name.Parse(s)
		d := both.Decide(Request{Stage: StageConn, Name: n, Addr: a, Port: port, Protocol: proto})
		if got == refused && proto == TCP && d.Allowed() {
			t.Fatalf("%+v under %+v: the kernel refuses %s port %d, which is allowed as %s", own.spec, ceiling.spec, a, port, s)
		}
		if got == forwarded && both.Intercepts(n, port) && proto == TCP {
			t.Fatalf("%+v under %+v: the kernel forwards %s port %d past the rules for %s", own.spec, ceiling.spec, a, port, s)
		}
	}
}

// FuzzRouteUnderCeiling: whatever way a connection passes below a ceiling, it is one on which both policies allow it.
func FuzzRouteUnderCeiling(f *testing.F) {
	fuzzUnderCeiling(f, 8, func(t *testing.T, r random, in, top interpreter, both, own, ceiling *Compiled) {
		for range 50 {
			req, e := r.routed()
			got := both.Route(req, e)
			if !passes(got) {
				continue
			}
			for _, c := range []*Compiled{own, ceiling} {
				if rt := c.Route(req, e); !passes(rt) && !got.ByName && len(e.Told) < 2 {
					t.Fatalf("%+v under %+v: %+v with %+v is %+v, but %+v by %+v alone", in.spec, top.spec, req, e, got, rt, c.spec)
				}
				if d := c.Decide(got.Request); !d.Allowed() {
					t.Fatalf("%+v under %+v: %+v with %+v is %+v, which %+v denies: %+v", in.spec, top.spec, req, e, got, c.spec, d)
				}
			}
			ruled, _ := interpreter{spec: top.spec}.rulesOn(req.Port) // a ceiling has no header rules
			unread := got.Action != Broker && e.Opening.unread(req.Name)
			if rt := ceiling.Route(req, e); unread && ruled && e.Dialled.IsValid() && len(e.Told) < 2 && !passes(rt) {
				t.Fatalf("%+v under %+v: unread, %+v with %+v is %+v, but %+v by the ceiling alone", in.spec, top.spec, req, e, got, rt)
			}
		}
	})
}

// TestAttackCeilingRulesUnread: a box's policy lists a name of its own that leads to a host whose requests the ceiling judges.
// Bytes that the gateway cannot read do not go there, unless the ceiling lists the name as well.
func TestAttackCeilingRulesUnread(t *testing.T) {
	evil, addr := mustName(t, "evil.test"), netip.MustParseAddr("203.0.113.7")
	rules := []match.RequestRule{{Hosts: []string{"api.good.test:8443"}, Action: match.ActionDeny}}
	own := Spec{Mode: ModeCustom, AllowedDomains: []string{"evil.test:8443"}}
	for _, c := range []struct {
		name    string
		ceiling Spec
		ruled   Tristate
		want    bool
	}{
		{"at the host with rules", Spec{Mode: ModeAllowAll, Rules: rules}, Yes, false},
		{"where the host with rules may be", Spec{Mode: ModeAllowAll, Rules: rules}, Unknown, false},
		{"elsewhere", Spec{Mode: ModeAllowAll, Rules: rules}, No, true},
		{"any name is listed by the ceiling", Spec{Mode: ModeCustom, AllowedDomains: []string{"*:8443"}, Rules: rules}, Yes, false},
		{"the name is listed by the ceiling", Spec{Mode: ModeCustom, AllowedDomains: []string{"evil.test"}, Rules: rules}, Yes, true},
		{"the ceiling has no rules", Spec{Mode: ModeAllowAll}, Yes, true}, // those are the policy's own
	} {
		t.Run(c.name, func(t *testing.T) {
			above, err := NewCeiling(c.ceiling)
			if err != nil {
				t.Fatal(err)
			}
			p, err := Compile(own, Options{Version: 1, Protected: &name.Protected{}, Ceiling: above})
			if err != nil {
				t.Fatal(err)
			}
			rt := p.Route(Request{Addr: addr, Port: 8443, Protocol: TCP},
				Evidence{Opening: OpeningOther, Told: []name.Name{evil}, Dialled: addr, Ruled: c.ruled, Owned: Yes})
			if passes(rt) != c.want {
				t.Errorf("%+v", rt)
			}
		})
	}
}

// TestCeiling: the operator's ceiling applies to every policy of a box, and decisions name the ceiling.
func TestCeiling(t *testing.T) {
	for _, c := range []struct {
		name, ceiling, policy string
		request               Request
		want                  name.Reason
		rule                  string
	}{
		{
			"a denied name", `{"mode":"custom","denied_domains":["*.evil.test"]}`, `{"mode":"allow-all"}`,
			Request{Stage: StageDNS, Name: mustName(t, "x.evil.test")}, name.ReasonDeniedDomain, "policy.ceiling: *.evil.test",
		},
		{
			"a denied address", `{"mode":"custom","denied_cidrs":["203.0.113.0/24"]}`, `{"mode":"custom","allowed_cidrs":["203.0.113.7/32"]}`,
			Request{Stage: StageKernel, Addr: netip.MustParseAddr("203.0.113.7"), Port: 22, Protocol: TCP}, name.ReasonDeniedCIDR, "policy.ceiling: 203.0.113.0/24",
		},
		{
			"what it does not list", `{"mode":"custom","allowed_domains":["api.good.test"]}`, `{"mode":"allow-all"}`,
			Request{Stage: StageConn, Name: mustName(t, "other.test"), Port: 443, Protocol: TCP}, name.ReasonNotAllowed, "policy.ceiling",
		},
		{
			"everything", `{"mode":"deny-all"}`, `{"mode":"allow-all"}`,
			Request{Stage: StageConn, Name: mustName(t, "other.test"), Port: 443, Protocol: TCP}, name.ReasonDenyAll, "policy.ceiling",
		},
		{
			"a request", `{"mode":"allow-all","rules":[{"hosts":["api.good.test"],"methods":["DELETE"],"action":"deny"}]}`, `{"mode":"allow-all","rules":[{"hosts":["api.good.test"],"action":"allow"}]}`,
			Request{Stage: StageHTTP, Name: mustName(t, "api.good.test"), Port: 443, Protocol: TCP, Method: "DELETE", Path: "/"}, name.ReasonRequestRule, "policy.ceiling: deny DELETE api.good.test",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			above, err := NewCeiling(mustSpec(t, c.ceiling))
			if err != nil {
				t.Fatal(err)
			}
			p, err := Compile(mustSpec(t, c.policy), Options{Version: 3, Protected: &name.Protected{}, Ceiling: above})
			if err != nil {
				t.Fatal(err)
			}
			if d := p.Decide(c.request); d.Verdict != Deny || d.Reason != c.want || d.Rule != c.rule || d.Version != 3 {
				t.Errorf("%+v; want %s by %q", d, c.want, c.rule)
			}
		})
	}
}

// TestCeilingOfAddressesKeepsNames: below a ceiling of CIDRs, names are still resolved, and reach the addresses that it lists.
func TestCeilingOfAddressesKeepsNames(t *testing.T) {
	above, err := NewCeiling(Spec{Mode: ModeCustom, AllowedCIDRs: []string{"203.0.113.0/24"}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compile(Spec{Mode: ModeCustom, AllowedDomains: []string{"api.good.test"}}, Options{Version: 1, Protected: &name.Protected{}, Ceiling: above})
	if err != nil {
		t.Fatal(err)
	}
	good := mustName(t, "api.good.test")
	if !c.ResolvesOthers(good) || c.ResolvesOthers(mustName(t, "bad.test")) {
		t.Error("the policy's name must be resolved, and no other")
	}
	for addr, want := range map[string]bool{"203.0.113.7": true, "192.0.2.1": false} {
		req := Request{Stage: StageConn, Name: good, Addr: netip.MustParseAddr(addr), Port: 443, Protocol: TCP}
		if d := c.Decide(req); d.Allowed() != want {
			t.Errorf("%s: %+v", addr, d)
		}
	}
}

// TestCeilingWarns: warnings name the entries of a policy that the ceiling overrides.
func TestCeilingWarns(t *testing.T) {
	above, err := NewCeiling(Spec{Mode: ModeCustom, AllowedDomains: []string{"*.good.test:443"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spec Spec
		want []string
	}{
		{Spec{Mode: ModeAllowAll}, []string{"/mode"}},
		{Spec{Mode: ModeDenyAll}, nil},
		{Spec{Mode: ModeCustom, AllowedDomains: []string{"api.good.test", "*", "bad.test", "api.good.test:80"}}, []string{"/allowed_domains/2", "/allowed_domains/3"}},
	} {
		p, err := Compile(c.spec, Options{Version: 1, Protected: &name.Protected{}, Ceiling: above})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range p.Warnings() {
			got = append(got, w.Pointer)
		}
		if strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("%+v: warnings at %v, want %v", c.spec, got, c.want)
		}
	}
}

// TestCeilingRefusesWhatItCannotMean: a rule that allows in a ceiling would be taken for one that the boxes can rely on.
func TestCeilingRefusesWhatItCannotMean(t *testing.T) {
	_, err := NewCeiling(Spec{
		Mode: ModeAllowAll, Rules: []match.RequestRule{{Hosts: []string{"a.test"}, Action: match.ActionAllow}},
		Repos: []match.RepoRule{{Name: "o/r", Access: "read"}},
	})
	var invalid *document.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Problems) < 2 {
		t.Errorf("%v", err)
	}
}

// TestCeilingAllowsSome compares the index of the ceiling's names with a search through them all.
func TestCeilingAllowsSome(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	pattern := func() string {
		s := []string{"", "*.", ""}[r.IntN(3)]
		for range r.IntN(3) {
			s += []string{"a.", "b.", "aa."}[r.IntN(3)]
		}
		return s + "test" + []string{"", ":80", ":443"}[r.IntN(3)]
	}
	for range nightly.Size(2000, 50_000) {
		spec := Spec{Mode: ModeCustom, Precedence: []Precedence{"", PrecedenceSpecific}[r.IntN(2)]}
		for range 1 + r.IntN(4) {
			spec.AllowedDomains = append(spec.AllowedDomains, pattern())
		}
		for range r.IntN(3) {
			spec.DeniedDomains = append(spec.DeniedDomains, pattern())
		}
		c, err := NewCeiling(spec)
		if err != nil {
			continue // an entry twice
		}
		domains := c.policy.domains
		for _, s := range []string{pattern(), pattern(), "*"} {
			p, err := name.ParsePattern(s)
			if err != nil {
				t.Fatal(err)
			}
			if p.IsWildcard() && c.below.allows(p) != domains.allowsBelow(p) {
				t.Errorf("%+v: below %s: %t", spec, s, c.below.allows(p))
			}
			meet := false
			for _, allowed := range spec.AllowedDomains {
				q, err := name.ParsePattern(allowed)
				if err != nil {
					t.Fatal(err)
				}
				if p.Port() != 0 {
					q = q.WithDefaultPort(p.Port())
				}
				_, both := intersect(p, q)
				meet = meet || both && !(domains.specific && domains.outranked(q))
			}
			if want := meet && !domains.deniesWhole(p); c.allowsSome(p) != want {
				t.Errorf("%+v: %s: %t", spec, s, !want)
			}
		}
	}
}

// BenchmarkCompileUnderCeiling compiles the largest policy under the largest ceiling, without a name in common.
func BenchmarkCompileUnderCeiling(b *testing.B) {
	spec := func(zone string) Spec {
		s := Spec{Mode: ModeCustom, Precedence: PrecedenceSpecific}
		for i := range MaxEntries {
			s.AllowedDomains = append(s.AllowedDomains, fmt.Sprintf("*.h%d.%s:443", i, zone))
		}
		return s
	}
	ceiling, err := NewCeiling(spec("ceiling.test"))
	if err != nil {
		b.Fatal(err)
	}
	box, protected := spec("box.test"), name.NewProtected(nil, nil)
	for b.Loop() {
		c, err := Compile(box, Options{Version: 1, Protected: protected, Ceiling: ceiling})
		if err != nil || len(c.Warnings()) == 0 {
			b.Fatal(err)
		}
	}
}
