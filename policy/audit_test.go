package policy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// audits compiles a random policy, with a ceiling in half of the draws, as it is enforced and as it is audited.
func (r random) audits() (in interpreter, enforced, audited, ceiling *Compiled) {
	in = r.interpreter()
	var o Options
	if r.IntN(2) > 0 {
		top := r.interpreter()
		for i := range top.spec.Rules {
			top.spec.Rules[i].Action = match.ActionDeny
		}
		if above, err := NewCeiling(top.spec); err == nil {
			o.Ceiling = above
			ceiling, _ = Compile(top.spec, Options{Protected: &name.Protected{}})
		}
	}
	enforced = in.compileWith(o)
	o.Audit = true
	return in, enforced, in.compileWith(o), ceiling
}

func fuzzAudits(f *testing.F, stream uint64, test func(t *testing.T, r random, in interpreter, enforced, audited, ceiling *Compiled)) {
	for seed := range nightly.Size[uint64](40, 400) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := random{rand.New(rand.NewPCG(seed, stream))}
		if in, enforced, audited, ceiling := r.audits(); enforced != nil {
			test(t, r, in, enforced, audited, ceiling)
		}
	})
}

// listsDenied reports whether a denied list covers a request, without an allowed range that is an exception.
func (in interpreter) listsDenied(r Request) bool {
	if in.namedBy(in.spec.DeniedDomains, r, true) > 0 {
		return true
	}
	a := r.Addr.Unmap().WithZone("")
	if !a.IsValid() {
		return false
	}
	denied := in.listed(in.spec.DeniedCIDRs, a, true)
	return denied > 0 && !(in.spec.Precedence == PrecedenceSpecific && in.listed(in.spec.AllowedCIDRs, a, false) > denied)
}

// FuzzAudit: an audited policy allows what the policy allows, by the same decision. It never allows what protected ranges, denied
// lists or the ceiling deny, and says of everything else why the policy would have denied it. The kernel agrees.
func FuzzAudit(f *testing.F) {
	fuzzAudits(f, 21, func(t *testing.T, r random, in interpreter, enforced, audited, ceiling *Compiled) {
		checkShape(t, audited.Kernel())
		for range 60 {
			req := r.request()
			was, got := enforced.Decide(req), audited.Decide(req)
			at := func() string { return strings.TrimSpace(string(was.Reason) + ": " + was.Rule) }
			a := req.Addr.Unmap().WithZone("")
			switch {
			case was.Allowed() && got != was:
				t.Fatalf("%+v: %+v is %+v, and audited %+v", in.spec, req, was, got)
			case !got.Allowed() || was.Allowed():
			case got.Reason != name.ReasonWouldDeny, !strings.HasPrefix(at(), got.Rule):
				t.Fatalf("%+v: %+v is %+v, and audited %+v", in.spec, req, was, got)
			case a.IsValid() && in.protected(a), in.listsDenied(req):
				t.Fatalf("%+v: an audit opens %+v, which is %s", in.spec, req, at())
			case was.Unread != 0:
				t.Fatalf("%+v: an audit does not wait for the body of %+v", in.spec, req)
			}
			if got.Allowed() && ceiling != nil && !ceiling.Decide(req).Allowed() {
				t.Fatalf("%+v: an audit opens %+v beyond the ceiling %+v", in.spec, req, ceiling.spec)
			}
			addr, proto := netip.MustParseAddr(pick(r, someAddrs)).WithZone(""), pick(r, []Protocol{TCP, UDP, ICMP})
			checkFate(t, in, audited, addr, pick(r, somePorts), proto)
		}
	})
}

// FuzzAuditedRoutes: an audit leaves each route of the policy as it is. A route that only the audit opens is marked, and neither logs in nor
// goes to an address that is closed; and a connection that may carry credentials has the routes of the policy alone.
func FuzzAuditedRoutes(f *testing.F) {
	fuzzAudits(f, 22, func(t *testing.T, r random, in interpreter, enforced, audited, ceiling *Compiled) {
		for range 60 {
			req, e := r.routed()
			was, got := enforced.Route(req, e), audited.Route(req, e)
			if was.Action != Refuse && !sameRoute(was, got) {
				t.Fatalf("%+v: %+v %+v has the route %+v, and audited %+v", in.spec, req, e, was, got)
			}
			e.Enforced = true
			if only := audited.Route(req, e); !sameRoute(was, only) {
				t.Fatalf("%+v: with credentials, %+v %+v has the route %+v instead of %+v", in.spec, req, e, only, was)
			}
			e.Enforced = false
			if !got.Audited {
				continue
			}
			if got.Action == Broker || got.Action == Intercept && ceiling == nil {
				t.Fatalf("%+v: an audited route %+v", in.spec, got)
			}
			known := e
			if got.Settle(&known); known.Enforced {
				t.Fatalf("%+v: a route without credentials is bound to the policy", got)
			}
			to := Request{Stage: StageDial, Name: got.Request.Name, Addr: e.Dialled, Port: req.Port, Protocol: TCP}
			if got.Action == Splice && e.Dialled.IsValid() && (in.protected(e.Dialled.Unmap()) || in.listsDenied(to)) {
				t.Fatalf("%+v: %+v %+v arrives by %+v", in.spec, req, e, got)
			}
		}
	})
}

// sameRoute compares all of two routes that a caller uses.
func sameRoute(a, b Route) bool {
	return a.Action == b.Action && a.ByName == b.ByName && a.Request.Name == b.Request.Name && a.Decision == b.Decision &&
		a.Needs == b.Needs && a.Audited == b.Audited
}

// FuzzLoosensAudited holds [Loosens] to its word where audits begin and end.
func FuzzLoosensAudited(f *testing.F) {
	for seed := range nightly.Size[uint64](200, 2000) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := random{rand.New(rand.NewPCG(seed, 23))}
		in := r.interpreter()
		other := in
		if r.IntN(2) > 0 {
			other = r.relative(in)
		}
		old, next := in.compileWith(Options{Audit: r.IntN(2) > 0}), other.compileWith(Options{Audit: r.IntN(2) > 0})
		if old == nil || next == nil {
			return
		}
		for range 60 {
			a := netip.MustParseAddr(pick(r, someAddrs)).WithZone("")
			checkLoosens(t, old, next, a, pick(r, somePorts), pick(r, []Protocol{TCP, UDP, ICMP}))
		}
	})
}

// TestAuditKeepsConnections: the beginning of an audit cuts no forwarded connection that the policy allows, and its end all others.
func TestAuditKeepsConnections(t *testing.T) {
	t.Parallel()
	listed, other := netip.MustParseAddr("203.0.112.5"), netip.MustParseAddr("8.8.8.8")
	spec := Spec{Mode: ModeCustom, AllowedCIDRs: []string{"203.0.112.0/24"}, AllowedDomains: []string{"a.test"}}
	enforced, audited := compileAudit(t, spec, Options{}), compileAudit(t, spec, Options{Audit: true})
	if !Loosens(enforced.Kernel(), audited.Kernel()) || Loosens(audited.Kernel(), enforced.Kernel()) {
		t.Error("an audit loosens its policy, and its end does not")
	}
	for _, c := range []struct {
		to                 netip.Addr
		port               uint16
		proto              Protocol
		enforced, audited_ bool
	}{
		{listed, 22, TCP, true, true}, {listed, 123, UDP, true, true}, {other, 22, TCP, false, false}, // to the proxy
		{other, 123, UDP, false, true}, {other, 443, UDP, false, false}, {other, 853, UDP, false, false}, {other, 0, ICMP, false, true},
	} {
		if enforced.Forwards(c.to, c.port, c.proto) != c.enforced || audited.Forwards(c.to, c.port, c.proto) != c.audited_ {
			t.Errorf("%s port %d by %s: forwarded %v and %v", c.to, c.port, c.proto, !c.enforced, !c.audited_)
		}
	}
}

func compileAudit(t *testing.T, spec Spec, o Options) *Compiled {
	t.Helper()
	o.Protected = name.NewProtected(nil, nil)
	c, err := Compile(spec, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAuditedRequests: header rules belong to requests that the policy allows; others pass without, for the reason that is recorded.
func TestAuditedRequests(t *testing.T) {
	t.Parallel()
	headers, err := ParseHeaderRules([]byte(`{"a.test":{"X-Key":"v"},"b.test":{"X-Key":"v"}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := Spec{Mode: ModeCustom, AllowedDomains: []string{"a.test"}, DeniedDomains: []string{"*.evil.test"}, Rules: []match.RequestRule{
		{Hosts: []string{"a.test"}, Methods: []string{"GET"}, Action: match.ActionAllow}, {Hosts: []string{"a.test"}, Action: match.ActionDeny},
	}}
	c := compileAudit(t, spec, Options{Audit: true, Headers: headers})
	for _, step := range []struct {
		host, method string
		action       Action
		audited      bool
		reason       name.Reason
		rule         string
	}{
		{"a.test", "GET", Forward, false, name.ReasonRequestRule, "hosts=a.test"},
		{"a.test", "POST", Forward, true, name.ReasonWouldDeny, "request_rule: "},
		{"b.test", "GET", Forward, true, name.ReasonWouldDeny, "not_allowed"},
		{"x.evil.test", "GET", Refuse, false, name.ReasonDeniedDomain, "*.evil.test"},
	} {
		host, _ := name.Parse(step.host)
		r := Request{Name: host, Port: 443, Protocol: TCP, Method: step.method, Path: "/"}
		rt := c.Route(r, Evidence{Opening: OpeningSecure})
		if rt.Action != step.action || rt.Audited != step.audited || rt.Decision.Reason != step.reason || step.audited && !strings.HasPrefix(rt.Decision.Rule, step.rule) {
			t.Errorf("%s %s: %+v", step.method, step.host, rt)
		}
		known := Evidence{Opening: OpeningSecure}
		rt.Settle(&known)
		if enforced := known.Enforced; enforced != (step.action == Forward && !step.audited) {
			t.Errorf("%s %s: bound to the policy: %v", step.method, step.host, enforced)
		}
		r.Stage = StageHTTP
		if e := c.Explain(r, true); e.Reason != step.reason {
			t.Errorf("%s %s is explained by %s", step.method, step.host, e.Reason)
		}
	}
}

// TestAuditDeniesWithTheRest: closed ceilings, quotas and unknown protected ranges deny under an audit too, and a policy that does not
// compile is not audited.
func TestAuditDeniesWithTheRest(t *testing.T) {
	t.Parallel()
	top, err := NewCeiling(Spec{Mode: ModeCustom, AllowedDomains: []string{"a.test"}})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := name.Parse("b.test")
	r := Request{Stage: StageConn, Name: b, Port: 443, Protocol: TCP, Addr: netip.MustParseAddr("8.8.8.8")}
	for label, o := range map[string]Options{
		"ceiling":   {Ceiling: top, Protected: &name.Protected{}},
		"quota":     {Withheld: Withheld{Reason: name.ReasonQuota, Rule: "limits.quota"}, Protected: &name.Protected{}},
		"protected": {},
		"source":    {Source: Source{V4: netip.MustParseAddr("203.0.113.7")}, Protected: &name.Protected{}},
	} {
		o.Audit = true
		c, err := Compile(Spec{Mode: ModeDenyAll}, o)
		if err != nil {
			t.Fatal(err)
		}
		if d := c.Decide(r); d.Allowed() {
			t.Errorf("%s: %+v", label, d)
		}
		if c.Forwards(r.Addr, 123, UDP) {
			t.Errorf("%s: the kernel forwards", label)
		}
	}
	if c, err := Compile(Spec{}, Options{Audit: true}); err == nil || c.Decide(r).Allowed() || !slices.ContainsFunc(err.(*document.InvalidError).Problems, func(p document.Problem) bool { return p.Pointer == "/mode" }) {
		t.Errorf("%v", err)
	}
}

// TestAuditLiftsDenyingHeaderRules: a request that an entry deny of the header rules refuses passes under an audit, without the headers
// of other rules, as docs/policies.md says; a denied domain stays closed.
func TestAuditLiftsDenyingHeaderRules(t *testing.T) {
	t.Parallel()
	headers, err := ParseHeaderRules([]byte(`{"a.test":[{"match":{"path":{"prefix":"/admin/"}},"deny":true},{"headers":{"X-Key":"v"}}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := compileAudit(t, Spec{Mode: ModeCustom, AllowedDomains: []string{"a.test"}}, Options{Audit: true, Headers: headers})
	host, _ := name.Parse("a.test")
	for path, want := range map[string]name.Reason{"/": name.ReasonAllowedDomain, "/admin/x": name.ReasonWouldDeny} {
		rt := c.Route(Request{Name: host, Port: 443, Protocol: TCP, Method: "GET", Path: path}, Evidence{Opening: OpeningSecure})
		if rt.Action != Forward || rt.Decision.Reason != want || rt.Audited != (want == name.ReasonWouldDeny) {
			t.Errorf("%s: %+v", path, rt)
		}
	}
}
