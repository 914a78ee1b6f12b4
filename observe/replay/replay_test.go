package replay

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/internal/nightly"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

var begin = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

// random draws policies and traffic of a small world, in which entries often meet.
type random struct{ *rand.Rand }

func pick[T any](r random, from ...T) T { return from[r.IntN(len(from))] }

func some[T any](r random, most int, from ...T) (out []T) {
	for range r.IntN(most + 1) {
		out = append(out, pick(r, from...))
	}
	return out
}

var (
	hosts = []string{"a.test", "*.a.test", "b.a.test:8443", "*.test", "*", "x.org", "*.org:443", "*:22", "a.test:80"}
	names = []string{"a.test", "b.a.test", "c.b.a.test", "x.org", "y.x.org", "other"}
	cidrs = []string{"1.0.0.0/8", "1.1.0.0/16", "1.1.1.1", "2600::/16", "::/0", "0.0.0.0/0", "10.0.0.0/8"}
	addrs = []string{"1.1.1.1", "1.2.3.4", "2600:1::1", "10.0.0.1", "8.8.8.8"}
	ports = []uint16{22, 80, 443, 853, 8443}
	paths = []string{"/", "/a", "/a/b", "//a", "/x/../a", "/users/123456", "/a%2fb"}
)

func (r random) spec() policy.Spec {
	s := policy.Spec{Mode: pick(r, policy.ModeAllowAll, policy.ModeDenyAll, policy.ModeCustom, policy.ModeCustom, policy.ModeCustom)}
	if s.Mode == policy.ModeCustom {
		s.AllowedDomains, s.DeniedDomains = some(r, 3, hosts...), some(r, 2, hosts...)
		s.AllowedCIDRs, s.DeniedCIDRs = some(r, 2, cidrs...), some(r, 2, cidrs...)
		s.Precedence = pick(r, "", "", policy.PrecedenceSpecific)
	}
	for range r.IntN(3) {
		if s.Mode == policy.ModeDenyAll {
			break
		}
		rule := match.RequestRule{Hosts: some(r, 1, hosts...), Methods: some(r, 1, "GET", "POST"), Paths: some(r, 1, "/a", "/a/*", "/users/*"), Action: pick(r, "allow", "deny")}
		rule.Hosts = append(rule.Hosts, pick(r, hosts...))
		switch r.IntN(6) {
		case 0:
			rule.Match = &match.Match{Query: match.Pairs{Pairs: []match.Pair{{Key: *match.Exact(pick(r, "key", "page"))}}}}
		case 1:
			rule.Match = &match.Match{Query: match.Pairs{Pairs: []match.Pair{{Key: *match.Exact("page"), Value: match.Exact("1")}}}}
		case 2:
			rule.Match = &match.Match{Headers: match.Pairs{Pairs: []match.Pair{{Key: *match.Exact("x-a"), Value: match.Exact("1")}}}}
		}
		s.Rules = append(s.Rules, rule)
	}
	return s
}

func (r random) headers(t *testing.T) []policy.HeaderRule {
	t.Helper()
	m := map[string]any{}
	for range r.IntN(3) {
		m[pick(r, "a.test", "*.a.test", "x.org:8443")] = pick(r, map[string]any{"x-key": "1"}, map[string]any{})
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	all, err := policy.ParseHeaderRules(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// question is what the gateway was asked, with everything that it then knew.
type question struct {
	stage    policy.Stage
	protocol policy.Protocol
	name     name.Name // sent
	told     name.Name // of a DNS answer with addr
	addr     netip.Addr
	port     uint16
	opening  policy.Opening
	method   string
	path     string
	query    string
	ruled    policy.Tristate
	proxied  bool
}

func (r random) question() question {
	n, _ := name.Parse(pick(r, names...))
	q := question{
		stage: pick(r, policy.StageDNS, policy.StageKernel, policy.StageConn, policy.StageConn, policy.StageHTTP), protocol: policy.TCP,
		addr: netip.MustParseAddr(pick(r, addrs...)), port: pick(r, ports...), ruled: pick(r, policy.Yes, policy.No),
	}
	switch q.stage {
	case policy.StageDNS:
		q.name, q.port = n, 0
	case policy.StageKernel:
		q.protocol = pick(r, policy.TCP, policy.UDP, policy.ICMP)
		q.opening, q.told = policy.OpeningOther, n
	case policy.StageConn:
		q.opening = pick(r, policy.OpeningTLS, policy.OpeningTLS, policy.OpeningOther, policy.OpeningSilent, policy.OpeningConnect, policy.OpeningUnreadable, policy.OpeningLenient)
		switch {
		case q.opening == policy.OpeningConnect, q.opening == policy.OpeningTLS && r.IntN(4) > 0:
			q.name = n
		case q.opening != policy.OpeningTLS && r.IntN(3) > 0:
			q.told = n
		}
		if q.opening == policy.OpeningConnect || !q.name.IsZero() && r.IntN(4) == 0 {
			q.addr = netip.Addr{} // the sink, or a name for the explicit proxy
		}
	case policy.StageHTTP:
		q.name, q.opening = n, pick(r, policy.OpeningRequest, policy.OpeningSecure)
		q.method, q.path = pick(r, "GET", "POST"), pick(r, paths...)
		q.query = pick(r, "", "page=1", "page=2", "key=secret&page=1", "secret")
	}
	return q
}

// truth is the decision of a policy with all evidence. reached is false if there would be none: the traffic has another form
// under this policy.
func (q question) truth(c *policy.Compiled) (d policy.Decision, action audit.Action, reached bool) {
	switch q.stage {
	case policy.StageDNS:
		d = c.Decide(policy.Request{Stage: policy.StageDNS, Name: q.name})
		if !d.Allowed() && (d.Reason != name.ReasonNotAllowed || !c.ResolvesOthers(q.name)) {
			return d, audit.ActionSink, true
		}
		return c.Decide(policy.Request{Stage: policy.StageDNS, Name: q.name, Addr: q.addr}), audit.ActionForward, true
	case policy.StageKernel:
		plan := c.Kernel()
		d = c.Decide(policy.Request{Stage: policy.StageKernel, Addr: q.addr, Port: q.port, Protocol: q.protocol})
		switch plan.Fate(q.addr, q.port, q.protocol) {
		case policy.Forwarded:
			return d, audit.ActionKernel, true
		case policy.Refused:
			d.Verdict = policy.Deny
			return d, audit.ActionRefuse, true
		}
		d, _, _ = q.conn(c)
		return d, audit.ActionSplice, false
	case policy.StageConn:
		return q.conn(c)
	}
	if q.opening == policy.OpeningSecure {
		tls := q
		tls.opening = policy.OpeningTLS
		if d, action, _ := tls.conn(c); action != audit.ActionIntercept {
			return d, action, false
		}
	}
	return q.request(c)
}

func (q question) conn(c *policy.Compiled) (policy.Decision, audit.Action, bool) {
	r := policy.Request{Stage: policy.StageConn, Name: q.name, Addr: q.addr, Port: q.port, Protocol: policy.TCP}
	e := policy.Evidence{Opening: q.opening, Dialled: q.addr, Owned: policy.Yes, Ruled: q.ruled}
	if !q.told.IsZero() {
		e.Told = []name.Name{q.told}
	}
	rt := c.Route(r, e)
	d := rt.Decision
	d.Verdict = policy.Allow
	switch {
	case rt.Action == policy.AwaitClient && q.opening != policy.OpeningConnect:
		return policy.Decision{Reason: name.ReasonPeekTimeout}, audit.ActionRefuse, true
	case rt.Action == policy.Refuse:
		d.Verdict = policy.Deny
		return d, audit.ActionRefuse, true
	case rt.Action == policy.Intercept:
		return d, audit.ActionIntercept, true
	}
	return d, audit.ActionSplice, true
}

func (q question) request(c *policy.Compiled) (policy.Decision, audit.Action, bool) {
	r := policy.Request{Stage: policy.StageHTTP, Name: q.name, Addr: q.addr, Port: q.port, Protocol: policy.TCP, Method: q.method, Path: q.path, Query: q.query}
	if needs := c.Needs(r.Name, r.Port); needs != nil {
		r.Fields = &match.Fields{Needs: needs, List: []match.Field{{Name: "x-a", Value: strconv.Itoa(len(q.path) % 2)}}}
	}
	rt := c.Route(r, policy.Evidence{Opening: q.opening, Dialled: q.addr, Owned: policy.Yes, Ruled: q.ruled})
	d := rt.Decision
	d.Verdict = policy.Allow
	if rt.Action == policy.Refuse {
		d.Verdict = policy.Deny
		return d, audit.ActionRefuse, true
	}
	if q.opening == policy.OpeningSecure {
		if _, refused := c.HeaderRule(r); refused.Reason != "" {
			return refused, audit.ActionRefuse, true
		}
	}
	return d, audit.ActionForward, true
}

// event is the event that the gateway records.
func (q question) event(d policy.Decision, action audit.Action, version uint64) audit.Event {
	e := audit.Event{
		Time: begin, Box: "b1", Stage: q.stage, Protocol: q.protocol, Name: q.name.String(), Addr: q.addr, Port: q.port, Method: q.method, Path: q.path,
		Verdict: d.Verdict, Action: action, Reason: d.Reason, Rule: d.Rule, Version: version,
	}
	if e.Name == "" {
		e.Name = q.told.String()
	}
	if q.stage == policy.StageDNS && action == audit.ActionSink {
		e.Addr = netip.Addr{}
	}
	if q.stage == policy.StageConn || q.stage == policy.StageHTTP {
		e.Seen = audit.Seen{Known: true, Opening: q.opening, Query: q.query}
		switch {
		case !q.name.IsZero():
			e.Seen.Source = audit.NameSent
		case !q.told.IsZero():
			e.Seen.Source = audit.NameLooked
		}
	}
	return e
}

func compile(t *testing.T, spec policy.Spec, headers []policy.HeaderRule, version uint64) *policy.Compiled {
	t.Helper()
	c, err := policy.Compile(spec, policy.Options{Version: version, Headers: headers, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		return nil
	}
	return c
}

func observed(t *testing.T, events ...audit.Event) []observe.Observation {
	t.Helper()
	l := observe.New(observe.Options{Path: filepath.Join(t.TempDir(), "observations.db"), Keep: 24 * time.Hour, Size: 64 << 20, Log: zap.NewNop()})
	defer l.Close()
	for _, e := range events {
		l.Observe(e)
	}
	s, err := l.Of("b1")
	if err != nil {
		t.Fatal(err)
	}
	return s.Observations
}

// TestReplayAgainstTheGateway draws policies and traffic. The policy that decided must reproduce each verdict, or say why it
// cannot; what the replay reports about a candidate must be its decision with all evidence.
func TestReplayAgainstTheGateway(t *testing.T) {
	t.Parallel()
	classes, whys := map[string]int{}, map[Why]int{}
	for seed := range nightly.Size[uint64](400, 20_000) {
		r := random{rand.New(rand.NewPCG(seed, 7))}
		headers := r.headers(t)
		before, after := compile(t, r.spec(), headers, 7), compile(t, r.spec(), headers, 8)
		if before == nil || after == nil {
			continue
		}
		for range 20 {
			q := r.question()
			d, action, reached := q.truth(before)
			if !reached {
				continue
			}
			o := observe.Of(ptr(q.event(d, action, 7)))
			if replays := Run(t.Context(), before, before, []observe.Observation{o}, time.Time{}); replays.Control.Different.Count > 0 || replays.Opens.Count+replays.Closes.Count+replays.Partly.Count > 0 {
				t.Fatalf("seed %d: the policy in force does not reproduce its decision %+v about %+v: %+v\n%+v", seed, d, q, replays, before.Spec())
			}
			got := Run(t.Context(), before, after, []observe.Observation{o}, time.Time{})
			want, _, same := q.truth(after)
			class := classOf(t, got, whys)
			classes[class]++
			expected := fmt.Sprint(d.Verdict, " ", want.Verdict)
			switch {
			case class == "unknown":
			case !want.Allowed() && (len(got.Opens.Lines) > 0 && got.Opens.Lines[0].ByName || q.stage == policy.StageDNS && !o.Addr.IsValid()) && ofAddress(want):
				classes["name only"]++
			case class != expected:
				t.Fatalf("seed %d: %s, want %s (%v) for %+v: %+v\nbefore %+v\nafter %+v", seed, class, expected, same, q, got, before.Spec(), after.Spec())
			}
		}
	}
	t.Log(classes, whys)
	for _, class := range []string{"allow allow", "allow deny", "deny allow", "deny deny"} {
		if classes[class] < classes["unknown"]/20 || classes[class] < 20 {
			t.Errorf("%d of class %q only: %v", classes[class], class, classes)
		}
	}
}

// ofAddress reports whether an address is denied.
func ofAddress(d policy.Decision) bool {
	return d.Reason == name.ReasonDeniedCIDR || d.Reason == name.ReasonProtectedRange
}

func ptr[T any](v T) *T { return &v }

// classOf returns the class of the only observation that was replayed: the verdicts before and after.
func classOf(t *testing.T, r Result, whys map[Why]int) string {
	t.Helper()
	classes := map[string]uint64{
		"allow allow": r.Allowed.Count, "deny deny": r.Denied.Count, "deny allow": r.Opens.Count, "allow deny": r.Closes.Count,
		"partly": r.Partly.Count + r.Mixed.Count, "unknown": r.Unknown.Count,
	}
	found, sum := "", uint64(0)
	for class, n := range classes {
		if n > 0 {
			found = class
		}
		sum += n
	}
	if sum != 1 || r.Seen.Count != 1 {
		t.Fatalf("one decision is counted %d times: %+v", sum, r)
	}
	for why := range r.Reasons {
		whys[why]++
	}
	return found
}
