package authority

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func some[T any](r *rand.Rand, most int, from ...T) (out []T) {
	for range r.IntN(most + 1) {
		out = append(out, pick(r, from...))
	}
	return out
}

var (
	hosts = []string{"a.test", "*.a.test", "b.a.test", "*.b.a.test:8443", "*.test", "*", "x.org", "*.org:443", "*:22", "*:80", "a.test:80"}
	names = []string{"a.test", "b.a.test", "c.b.a.test", "d.c.b.a.test", "ba.test", "test", "x.org", "y.x.org", "none", "other.test"}
	cidrs = []string{"1.0.0.0/8", "1.1.0.0/16", "1.1.1.1", "1.1.1.0/31", "2600::/16", "2600:1::/32", "::/0", "0.0.0.0/0", "10.0.0.0/8", "64:ff9b::/96"}
	addrs = []string{"1.1.1.1", "1.1.1.2", "1.2.3.4", "2600:1::1", "2600:2::1", "64:ff9b::101:101", "64:ff9b::102:304", "10.0.0.1", "8.8.8.8", "9::9", "255.0.0.1"}
	ports = []uint16{0, 22, 80, 443, 853, 8443, 9999}
)

func draw(r *rand.Rand) policy.Spec {
	s := policy.Spec{Mode: pick(r, policy.ModeAllowAll, policy.ModeDenyAll, policy.ModeCustom, policy.ModeCustom, policy.ModeCustom, policy.ModeCustom)}
	if s.Mode == policy.ModeCustom {
		s.AllowedDomains, s.DeniedDomains = some(r, 3, hosts...), some(r, 2, hosts...)
		s.AllowedCIDRs, s.DeniedCIDRs = some(r, 3, cidrs...), some(r, 2, cidrs...)
		s.Precedence = pick(r, "", "", policy.PrecedenceSpecific)
	}
	if s.Mode != policy.ModeDenyAll {
		for range r.IntN(4) {
			s.Rules = append(s.Rules, match.RequestRule{
				Hosts: []string{pick(r, hosts...)}, Methods: some(r, 1, "GET", "POST"), Paths: some(r, 1, "/a", "/a*", "/"), Action: pick(r, "allow", "deny", "deny"),
			})
		}
		if r.IntN(5) == 0 {
			s.UpstreamProxy = &policy.UpstreamSpec{URL: "http://proxy.x.org:3128"}
		}
	}
	if r.IntN(6) == 0 && s.Mode == policy.ModeCustom {
		s = s.Overruled(pick(r, "a.test", "*.b.a.test", "1.1.1.1"))
	}
	return s
}

// change returns the policy with one more or one less entry, so that policies often differ little.
func change(r *rand.Rand, s policy.Spec) policy.Spec {
	text, _ := json.Marshal(s)
	var out policy.Spec
	_ = json.Unmarshal(text, &out)
	for _, list := range []struct {
		of   *[]string
		from []string
	}{{&out.AllowedDomains, hosts}, {&out.DeniedDomains, hosts}, {&out.AllowedCIDRs, cidrs}, {&out.DeniedCIDRs, cidrs}} {
		if out.Mode != policy.ModeCustom || r.IntN(3) > 0 {
			continue
		}
		if n := len(*list.of); n > 0 && r.IntN(2) == 0 {
			i := r.IntN(n)
			*list.of = slices.Delete(*list.of, i, i+1)
		} else {
			*list.of = append(*list.of, pick(r, list.from...))
		}
	}
	if n := len(out.Rules); n > 0 && r.IntN(2) == 0 {
		r.Shuffle(n, func(i, j int) { out.Rules[i], out.Rules[j] = out.Rules[j], out.Rules[i] })
		out.Rules = out.Rules[:n-r.IntN(2)]
	}
	return out
}

func compile(s policy.Spec, headers []policy.HeaderRule, ceiling *policy.Ceiling) *policy.Compiled {
	c, err := policy.Compile(s, policy.Options{Version: 1, Headers: headers, Ceiling: ceiling, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		return nil
	}
	return c
}

// covers reports whether a line covers a request, with its names in every form in which a box can write it.
func (l Line) covers(r policy.Request) bool {
	port := len(l.Ports) == 0 || slices.Contains(l.Ports, r.Port)
	protocol := slices.Contains(l.Protocols, r.Protocol)
	switch l.Kind {
	case KindName, KindQuery:
		p, err := name.ParsePattern(l.Name)
		return err == nil && p.Match(r.Name, 0) && (r.Stage == policy.StageDNS || port && r.Protocol == policy.TCP && l.Kind == KindName)
	case KindAddress:
		p := netip.MustParsePrefix(l.Prefix)
		return protocol && (p.Contains(r.Addr) || p.Contains(name.Untranslated(r.Addr)))
	case KindPort:
		return protocol && port
	case KindRequest, KindUnjudged:
		return r.Stage == policy.StageHTTP && (len(l.Methods) == 0 || slices.ContainsFunc(l.Methods, func(m string) bool { return strings.EqualFold(m, r.Method) })) &&
			slices.ContainsFunc(l.Hosts, func(h string) bool { p, err := name.ParsePattern(h); return err == nil && p.Match(r.Name, r.Port) })
	}
	return false
}

// TestGainsAreCovered draws pairs of policies, half of them alike, and requests: what the second allows and the first denies is covered by a
// line, under a ceiling as well. Policies that are the same have no difference.
func TestGainsAreCovered(t *testing.T) {
	t.Parallel()
	headers, err := policy.ParseHeaderRules([]byte(`{"a.test":{"x-key":"1"},"*.org:8443":{"x-key":"1"}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	gains, lines := 0, 0
	for seed := range nightly.Size[uint64](500, 60_000) {
		r := rand.New(rand.NewPCG(seed, 3))
		a := draw(r)
		b := change(r, a)
		if r.IntN(2) == 0 {
			b = draw(r)
		}
		if r.IntN(2) == 0 {
			headers = headers[:len(headers)-r.IntN(len(headers)+1)]
		}
		var ceiling *policy.Ceiling
		if r.IntN(3) == 0 {
			ceiling, _ = policy.NewCeiling(draw(r))
		}
		before, after := compile(a, headers, nil), compile(b, headers, nil)
		if before == nil || after == nil {
			continue
		}
		if d := Compare(before, before); len(d.Gained)+len(d.Lost) > 0 {
			t.Fatalf("seed %d: a policy differs from itself: %+v\n%+v", seed, d, a)
		}
		d := Compare(before, after)
		if lines += len(d.Gained); len(d.Gained) > 40 {
			t.Errorf("seed %d: %d lines: %.600v\nbefore %+v\nafter %+v", seed, len(d.Gained), d.Gained, a, b)
		}
		under := compile(a, headers, ceiling)
		over := compile(b, headers, ceiling)
		for range 200 {
			q := drawRequest(r)
			if under.Decide(q).Allowed() || !over.Decide(q).Allowed() {
				continue
			}
			gains++
			if !slices.ContainsFunc(d.Gained, func(l Line) bool { return l.covers(q) }) && d.More == 0 {
				t.Fatalf("seed %d: %+v is gained (%+v, %+v) and in no line: %.1500v\nbefore %+v\nafter %+v", seed, q, under.Decide(q), over.Decide(q), d.Gained, a, b)
			}
		}
	}
	if gains < 1000 || lines < 500 {
		t.Errorf("%d gains, %d lines", gains, lines)
	}
	t.Logf("%d gains, %d lines", gains, lines)
}

func drawRequest(r *rand.Rand) policy.Request {
	q := policy.Request{
		Stage: pick(r, policy.StageDNS, policy.StageKernel, policy.StageConn, policy.StageConn, policy.StageHTTP, policy.StageDial), Port: pick(r, ports[1:]...),
		Protocol: pick(r, policy.TCP, policy.TCP, policy.TCP, policy.UDP, policy.ICMP),
	}
	if r.IntN(4) > 0 {
		q.Name, _ = name.Parse(pick(r, names...))
	}
	if r.IntN(3) > 0 {
		q.Addr = netip.MustParseAddr(pick(r, addrs...))
	}
	switch q.Stage {
	case policy.StageDNS:
		q.Port, q.Protocol, q.Addr = 0, policy.UDP, netip.Addr{}
	case policy.StageHTTP:
		q.Protocol, q.Method, q.Path = policy.TCP, pick(r, "GET", "POST", "post"), pick(r, "/", "/a", "/ab", "//a", "/x/../a")
	}
	if q.Protocol == policy.ICMP {
		q.Port = 0
	}
	if q.Protocol != policy.TCP && q.Stage != policy.StageDNS {
		q.Name = name.Name{} // the kernel knows no names
	}
	return q
}

// The lines are what a reader of the policies would say.
func TestLines(t *testing.T) {
	t.Parallel()
	headers, err := policy.ParseHeaderRules([]byte(`{"api.example.com":{"authorization":"Bearer x"}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	custom := func(domains ...string) policy.Spec {
		return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: domains}
	}
	with := func(s policy.Spec, edit func(*policy.Spec)) policy.Spec { edit(&s); return s }
	for title, c := range map[string]struct {
		a, b policy.Spec
		want string
	}{
		"a name":           {custom("x.example.com"), custom("x.example.com", "y.example.com:443"), "name y.example.com [443]"},
		"a credential":     {custom("x.example.com"), custom("*.example.com"), "name *.example.com headers api.example.com:443"},
		"a public suffix":  {custom("x.example.com"), custom("x.example.com", "*.com"), "name *.com wide headers api.example.com:443"},
		"no longer denied": {with(custom("*.example.com"), func(s *policy.Spec) { s.DeniedDomains = []string{"evil.example.com"} }), custom("*.example.com"), "name evil.example.com"},
		"addresses":        {custom("x.example.com"), with(custom("x.example.com"), func(s *policy.Spec) { s.AllowedCIDRs = []string{"203.0.112.0/24", "8.8.8.0/24"} }), "address 8.8.8.0/24 tcp,udp,icmp; address 203.0.112.0/24 tcp,udp,icmp"},
		"the rule is gone": {with(custom("x.example.com"), func(s *policy.Spec) {
			s.Rules = []match.RequestRule{{Hosts: []string{"x.example.com"}, Methods: []string{"DELETE"}, Action: "deny"}}
		}), custom("x.example.com"), "request x.example.com DELETE; unjudged x.example.com"},
		"everything":                  {policy.Spec{Mode: policy.ModeDenyAll}, policy.Spec{Mode: policy.ModeAllowAll}, "name * wide; address 0.0.0.0/0 tcp,udp,icmp wide; address ::/0 tcp,udp,icmp wide"},
		"only less":                   {custom("x.example.com", "y.example.com"), custom("x.example.com"), ""},
		"a service":                   {custom("x.example.com"), custom("x.example.com", "service:db"), "name db.service.boxgate.internal"},
		"a service besides any name":  {custom("*"), custom("*", "service:db"), "name db.service.boxgate.internal"},
		"any name and a service":      {policy.Spec{Mode: policy.ModeDenyAll}, custom("*", "service:db"), "name * wide; name db.service.boxgate.internal; address 0.0.0.0/0 tcp wide; address ::/0 tcp wide"},
		"a wildcard opens no service": {custom("x.example.com"), custom("x.example.com", "*.service.boxgate.internal"), ""},
		"QUIC to an address":          {with(custom("x.example.com"), func(s *policy.Spec) { s.AllowedCIDRs = []string{"8.8.8.8"} }), policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{"8.8.8.8"}}, "query *; port udp [443]"},
	} {
		var headed []policy.HeaderRule
		if strings.Contains(c.want, "headers") {
			headed = headers
		}
		before, after := compile(c.a, headed, nil), compile(c.b, headed, nil)
		if before == nil || after == nil {
			t.Fatal(title, "does not compile")
		}
		var got []string
		for _, l := range Compare(before, after).Gained {
			text := strings.Join(slices.Concat([]string{string(l.Kind)}, nonEmpty(l.Name, l.Prefix), l.Hosts, l.Methods), " ")
			if len(l.Protocols) > 0 {
				text += " " + strings.ReplaceAll(strings.Trim(fmt.Sprint(l.Protocols), "[]"), " ", ",")
			}
			if len(l.Ports) > 0 {
				text += " " + fmt.Sprint(l.Ports)
			}
			if l.Wide {
				text += " wide"
			}
			if len(l.Headers) > 0 {
				text += " headers " + strings.Join(l.Headers, ",")
			}
			got = append(got, text)
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%s: %s, want %s", title, strings.Join(got, "; "), c.want)
		}
	}
}

func nonEmpty(list ...string) []string {
	return slices.DeleteFunc(list, func(s string) bool { return s == "" })
}

// TestAttackLargeComparison: the work for policies with as many names and ports as an API key can set ends with its context, and then there
// is no difference, which would look complete.
func TestAttackLargeComparison(t *testing.T) {
	t.Parallel()
	large := func(tag string) *policy.Compiled {
		s := policy.Spec{Mode: policy.ModeCustom}
		for i := range policy.MaxEntries / 2 {
			s.AllowedDomains = append(s.AllowedDomains, fmt.Sprintf("*.%s%d.example", tag, i), fmt.Sprintf("*:%d", 1+i))
		}
		c := compile(s, nil, nil)
		if c == nil {
			t.Fatal("cannot compile the policy")
		}
		return c
	}
	before, after := large("a"), large("b")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if d, err := CompareWithin(ctx, before, after); !errors.Is(err, context.DeadlineExceeded) || d.Gained != nil || d.Lost != nil {
		t.Errorf("%d and %d lines, %v", len(d.Gained), len(d.Lost), err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

// TestLinesOfACluster: names and service addresses of a cluster are lines of their own, whatever else the policies allow.
func TestLinesOfACluster(t *testing.T) {
	t.Parallel()
	domain, err := name.Parse("cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	o := policy.Options{Protected: name.NewProtected(nil, nil), Cluster: policy.NewCluster(domain, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")})}
	custom := func(cidrs []string, domains ...string) policy.Spec {
		return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: domains, AllowedCIDRs: cidrs}
	}
	services := []string{policy.ClusterServices}
	for title, c := range map[string]struct {
		a, b policy.Spec
		want string
	}{
		"a name":                  {custom(nil, "x.example.com"), custom(nil, "x.example.com", "web.a.svc.cluster.local"), "name web.a.svc.cluster.local"},
		"a name besides any name": {custom(nil, "*"), custom(nil, "*", "*.svc.cluster.local"), "name *.svc.cluster.local"},
		"a wildcard above":        {custom(nil, "x.example.com"), custom(nil, "x.example.com", "*.local"), "name *.local wide"},
		"services":                {custom(nil, "x.example.com"), custom(services, "x.example.com"), "query *.cluster.local; query cluster.local; address 10.96.0.0/12 tcp wide"},
		"some services":           {custom(nil, "x.example.com"), policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"x.example.com"}, AllowedCIDRs: services, DeniedCIDRs: []string{"10.96.0.0/13"}}, "query *.cluster.local; query cluster.local; address 10.104.0.0/13 tcp wide"},
		"its range is none":       {custom([]string{"8.8.8.8"}), custom([]string{"8.8.8.8", "10.96.0.0/12"}), ""},
	} {
		before, err := policy.Compile(c.a, o)
		after, err2 := policy.Compile(c.b, o)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		var got []string
		for _, l := range Compare(before, after).Gained {
			text := strings.Join(slices.Concat([]string{string(l.Kind)}, nonEmpty(l.Name, l.Prefix)), " ")
			for _, p := range l.Protocols {
				text += " " + string(p)
			}
			if l.Wide {
				text += " wide"
			}
			got = append(got, text)
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%s: %s, want %s", title, strings.Join(got, "; "), c.want)
		}
	}
}
