package policy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// interpreter decides slowly, straight from the sentences of the contract, without the tables of Compiled.
type interpreter struct {
	spec    Spec
	headers []HeaderRule
	exempt  []netip.Prefix
	own     []netip.Prefix
}

func (in interpreter) decide(r Request) (Verdict, name.Reason) {
	v, reason := in.destination(r)
	if v == Deny || r.Stage == StageDNS {
		return v, reason
	}
	switch {
	case r.Protocol != TCP && r.Protocol != UDP && r.Protocol != ICMP && r.Protocol != "":
		return Deny, name.ReasonProtocol
	case (r.Protocol == TCP || r.Protocol == "") && r.Port == 853 && reason != name.ReasonAllowedCIDR:
		return Deny, name.ReasonProtocol
	case r.Protocol == UDP && r.Port == 853 && reason != name.ReasonAllowedCIDR:
		return Deny, name.ReasonProtocol
	case r.Protocol == UDP && r.Port != 443 && r.Port != 0 && in.ruledPort(r.Port):
		return Deny, name.ReasonProtocol
	case r.Protocol == UDP && r.Port == 443 && in.namesMatterOn443():
		return Deny, name.ReasonProtocol
	}
	if r.Stage == StageHTTP {
		for _, rule := range in.spec.Rules {
			covered := slices.ContainsFunc(rule.Hosts, func(h string) bool { return in.domainMatches(h, r) })
			if covered && (strings.Contains(r.Path, "//") || strings.ContainsAny(r.Path, "%;") || strings.Contains(r.Path, "..")) {
				return Deny, name.ReasonAmbiguousPath
			}
			if in.ruleMatches(rule, r) {
				if rule.Action == "allow" {
					return Allow, name.ReasonRequestRule
				}
				return Deny, name.ReasonRequestRule
			}
		}
	}
	return v, reason
}

func (in interpreter) destination(r Request) (Verdict, name.Reason) {
	a := r.Addr.Unmap().WithZone("")
	if a.IsValid() && in.protected(a) {
		return Deny, name.ReasonProtectedRange
	}
	specific := in.spec.Precedence == PrecedenceSpecific
	if denied := in.namedBy(in.spec.DeniedDomains, r, true); denied > 0 && !(specific && in.namedBy(in.spec.AllowedDomains, r, false) > denied) {
		return Deny, name.ReasonDeniedDomain
	}
	if a.IsValid() {
		if denied := in.listed(in.spec.DeniedCIDRs, a, true); denied > 0 && !(specific && in.listed(in.spec.AllowedCIDRs, a, false) > denied) {
			return Deny, name.ReasonDeniedCIDR
		}
	}
	if in.spec.Mode == ModeDenyAll {
		return Deny, name.ReasonDenyAll
	}
	if !a.IsValid() && r.Name.IsZero() {
		return Deny, name.ReasonNoName
	}
	if in.spec.Mode == ModeAllowAll {
		return in.open(r, name.ReasonAllowAll)
	}
	if a.IsValid() && in.listed(in.spec.AllowedCIDRs, a, false) > 0 {
		return Allow, name.ReasonAllowedCIDR
	}
	if r.Stage == StageDNS || r.Protocol == TCP || r.Protocol == "" {
		for _, s := range in.spec.AllowedDomains {
			host, port, _ := strings.Cut(s, ":")
			nameless := host == "*" && r.Name.IsZero() && (port == "" || r.Port == 0 || port == decimal(r.Port))
			if nameless {
				return in.open(r, name.ReasonAllowedDomain)
			}
			if in.domainMatches(s, r) && !in.outranked(s) {
				return Allow, name.ReasonAllowedDomain
			}
		}
	}
	if len(in.spec.AllowedDomains) == 0 && len(in.spec.AllowedCIDRs) == 0 {
		return in.open(r, name.ReasonNotDenied)
	}
	return Deny, name.ReasonNotAllowed
}

// open allows unless a name that matters is missing.
func (in interpreter) open(r Request, why name.Reason) (Verdict, name.Reason) {
	tcp := r.Stage != StageDNS && (r.Protocol == TCP || r.Protocol == "")
	web := r.Port == 80 || r.Port == 443
	any, explicit := in.rulesOn(r.Port)
	if tcp && r.Name.IsZero() && (explicit || web && (any || in.deniesNamesOn(r.Port))) {
		return Deny, name.ReasonNoName
	}
	return Allow, why
}

// rulesOn reports whether a rule covers a port, and whether one names it.
func (in interpreter) rulesOn(port uint16) (covered, named bool) {
	for _, rule := range in.spec.Rules {
		for _, h := range rule.Hosts {
			_, p, _ := strings.Cut(h, ":")
			covered = covered || p == "" || p == decimal(port)
			named = named || p != "" && p == decimal(port)
		}
	}
	for _, h := range in.headers {
		p := h.Pattern.Port()
		if p == 0 {
			p = 443
		}
		if h.Applies() && p == port {
			covered, named = true, true
		}
	}
	return covered, named
}

func (in interpreter) deniesNamesOn(port uint16) bool {
	for _, s := range in.spec.DeniedDomains {
		if _, p, _ := strings.Cut(s, ":"); p == "" || p == decimal(port) {
			return true
		}
	}
	return false
}

// mustDial reports whether a request that is not denied is allowed only to an address of its name.
func (in interpreter) mustDial(r Request) bool {
	if r.Name.IsZero() {
		return false
	}
	if r.Stage == StageDNS {
		return len(in.spec.DeniedDomains) > 0
	}
	covered, _ := in.rulesOn(r.Port)
	return (r.Protocol == TCP || r.Protocol == "") && (covered || in.deniesNamesOn(r.Port))
}

func decimal(port uint16) string {
	var digits []byte
	for ; port > 0; port /= 10 {
		digits = append([]byte{byte('0' + port%10)}, digits...)
	}
	return string(digits)
}

// domainMatches compares label by label.
func (in interpreter) domainMatches(pattern string, r Request) bool {
	host, port, _ := strings.Cut(pattern, ":")
	if r.Name.IsZero() || port != "" && r.Port != 0 && port != decimal(r.Port) {
		return false
	}
	want, got := strings.Split(host, "."), strings.Split(r.Name.String(), ".")
	if want[0] == "*" {
		want = want[1:]
		return len(got) > len(want) && slices.Equal(got[len(got)-len(want):], want)
	}
	return slices.Equal(want, got)
}

var (
	wellKnownNAT64 = netip.MustParsePrefix("64:ff9b::/96")
	special        = name.SpecialPurpose()
)

// namedBy returns how specific the longest pattern of a list is that covers the name of a request: 1 for "*", 2 more for each label,
// and one more for a name without a wildcard. It is 0 if none does.
func (in interpreter) namedBy(list []string, r Request, denying bool) (longest int) {
	for _, s := range list {
		host, port, _ := strings.Cut(s, ":")
		// Before a port is known, DNS does not deny a name that is denied on one port only.
		if notYet := denying && r.Stage == StageDNS && r.Port == 0 && port != ""; notYet || !in.domainMatches(s, r) || !denying && in.outranked(s) {
			continue
		}
		rank := 2*strings.Count("."+host, ".") + 1
		if strings.HasPrefix(host, "*") {
			rank -= 2
		} else {
			rank++
		}
		longest = max(longest, rank)
	}
	return longest
}

// outranked reports whether an allowed pattern is without effect, as the same one is denied on its ports.
func (in interpreter) outranked(s string) bool {
	host, _, _ := strings.Cut(s, ":")
	return in.spec.Precedence == PrecedenceSpecific && host != "*" && (slices.Contains(in.spec.DeniedDomains, s) || slices.Contains(in.spec.DeniedDomains, host))
}

// listed returns one more than the length of the longest range of a list that contains an address, as an IPv6 length if the
// address is IPv6; 0 if none does. A NAT64 address is in the list if its IPv4 is. An IPv6 range that is wider than NAT64 denies it too,
// but does not allow it.
func (in interpreter) listed(list []string, a netip.Addr, denying bool) (longest int) {
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			p = netip.PrefixFrom(netip.MustParseAddr(s), netip.MustParseAddr(s).BitLen())
		}
		if wellKnownNAT64.Contains(a) {
			b := a.As16()
			if p.Contains(netip.AddrFrom4([4]byte(b[12:]))) {
				longest = max(longest, 97+p.Bits())
			}
			if !denying && p.Bits() < 96 {
				continue
			}
		}
		if p.Contains(a) {
			longest = max(longest, 1+p.Bits())
		}
	}
	return longest
}

func (in interpreter) protected(a netip.Addr) bool {
	if wellKnownNAT64.Contains(a) {
		b := a.As16()
		if in.protected(netip.AddrFrom4([4]byte(b[12:]))) {
			return true
		}
	}
	exempted := false
	for _, e := range in.exempt {
		exempted = exempted || e.Contains(a)
	}
	for _, s := range special {
		if s.Contains(a) && !exempted {
			return true
		}
	}
	for _, o := range in.own {
		if !o.Contains(a) {
			continue
		}
		opened := false
		for _, e := range in.exempt {
			opened = opened || e.Contains(a) && e.Bits() >= o.Bits()
		}
		if !opened {
			return true
		}
	}
	return false
}

// namesMatterOn443 reports whether a name or header rule could apply on 443.
func (in interpreter) namesMatterOn443() bool {
	hosts := slices.Concat(in.spec.AllowedDomains, in.spec.DeniedDomains)
	for _, r := range in.spec.Rules {
		hosts = append(hosts, r.Hosts...)
	}
	for _, h := range hosts {
		if _, port, found := strings.Cut(h, ":"); !found || port == "443" {
			return true
		}
	}
	for _, h := range in.headers {
		if p := h.Pattern.Port(); h.Applies() && (p == 0 || p == 443) {
			return true
		}
	}
	return false
}

// ruledPort reports whether a header or request rule names the port.
func (in interpreter) ruledPort(port uint16) bool {
	want := fmt.Sprintf(":%d", port)
	for _, r := range in.spec.Rules {
		if slices.ContainsFunc(r.Hosts, func(h string) bool { return strings.HasSuffix(h, want) }) {
			return true
		}
	}
	return slices.ContainsFunc(in.headers, func(h HeaderRule) bool { return h.Applies() && h.Pattern.Port() == port })
}

func (in interpreter) ruleMatches(rule match.RequestRule, r Request) bool {
	host := slices.ContainsFunc(rule.Hosts, func(h string) bool { return in.domainMatches(h, r) })
	method := len(rule.Methods) == 0 || slices.Contains(rule.Methods, r.Method)
	path := len(rule.Paths) == 0 || slices.ContainsFunc(rule.Paths, func(p string) bool {
		if prefix, ok := strings.CutSuffix(p, "*"); ok {
			return strings.HasPrefix(r.Path, prefix)
		}
		return p == r.Path
	})
	return host && method && path
}

// The vocabulary of random policies and requests: small, so that they often match.
var (
	someNames = []string{"a.test", "b.a.test", "c.b.a.test", "ba.test", "test", "a.test.evil", "x.org"}
	someHosts = []string{"a.test", "*.a.test", "b.a.test", "*.b.a.test", "*.test", "*", "x.org", "*.org"}
	somePorts = []uint16{22, 80, 443, 853, 8443}
	someCIDRs = []string{
		"1.0.0.0/8", "1.1.0.0/16", "1.1.1.1", "1.1.1.0/31", "2600::/16", "2600:1::/32", "::/0", "0.0.0.0/0", "10.0.0.0/8",
		"64:ff9b::101:0/112", "64:ff9b::/96", "64:ff9b::/95", "2002::/16", "203.0.113.0/24",
	}
	someAddrs = []string{
		"1.1.1.1", "1.1.1.2", "1.2.3.4", "2600:1::1", "2600:2::1", "::ffff:1.1.1.1", "64:ff9b::101:101", "64:ff9b::a00:1",
		"64:ff9b::102:304", "10.0.0.1", "10.9.0.1", "2002:101:101::", "2001:0:1::", "203.0.113.5", "fe80::1%eth0", "8.8.8.8", "9::9",
	}
	somePaths = []string{"/", "/a", "/a/b", "/ab", "//a", "/x/../a", "/%61", "/a%2fb", "/a;b", "/a/"}
)

// random draws policies and requests.
type random struct{ *rand.Rand }

func pick[T any](r random, from []T) T { return from[r.IntN(len(from))] }

func (r random) some(most int, draw func() string) []string {
	var out []string
	for range r.IntN(most + 1) {
		out = append(out, draw())
	}
	return out
}

func (r random) host() string {
	h := pick(r, someHosts)
	if r.IntN(3) == 0 {
		h += ":" + decimal(pick(r, somePorts))
	}
	return h
}

func (r random) prefixes(most int) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range r.some(most, func() string { return pick(r, someCIDRs) }) {
		p, err := name.ParseCIDR(s)
		if err != nil {
			panic(err)
		}
		out = append(out, p)
	}
	return out
}

func (r random) interpreter() interpreter {
	in := interpreter{exempt: r.prefixes(2), own: r.prefixes(2)}
	in.spec.Mode = pick(r, []Mode{ModeAllowAll, ModeDenyAll, ModeCustom, ModeCustom, ModeCustom, ModeCustom})
	for range r.IntN(3) {
		if in.spec.Mode == ModeDenyAll {
			break
		}
		rule := match.RequestRule{Hosts: []string{r.host()}, Action: pick(r, []string{"allow", "deny"})}
		rule.Methods = r.some(1, func() string { return pick(r, []string{"GET", "POST"}) })
		rule.Paths = r.some(1, func() string { return pick(r, []string{"/a", "/a*", "/", "/a/*"}) })
		in.spec.Rules = append(in.spec.Rules, rule)
	}
	if in.spec.Mode == ModeCustom {
		cidr := func() string { return pick(r, someCIDRs) }
		in.spec.AllowedDomains, in.spec.DeniedDomains = r.some(3, r.host), r.some(2, r.host)
		in.spec.AllowedCIDRs, in.spec.DeniedCIDRs = r.some(3, cidr), r.some(2, cidr)
		in.specific(r)
	}
	m := map[string]any{}
	for range r.IntN(3) {
		if h := r.host(); !strings.HasPrefix(h+":", "*:") {
			m[h] = pick(r, []map[string]any{
				{"x-a": "1"}, {}, {"headers": map[string]any{}, "scrub": false},
				{"placeholders": map[string]any{"KEY": map[string]any{"secret": "s"}}},
			})
		}
	}
	if r.IntN(3) == 0 {
		login := map[string]any{"user": "app", "database": "orders", "password": map[string]any{"secret": "s"}}
		m[pick(r, someNames)+":"+pick(r, []string{"22", "8443"})] = map[string]any{"postgres": login}
	}
	doc, _ := json.Marshal(m)
	in.headers, _ = ParseHeaderRules(doc, nil) // the same pattern twice: no rules then
	return in
}

// specific gives some policies the precedence of the more specific entry, and more entries, as exceptions need both lists.
func (in *interpreter) specific(r random) {
	if r.IntN(2) > 0 {
		return
	}
	in.spec.Precedence = PrecedenceSpecific
	cidr := func() string { return pick(r, someCIDRs) }
	for _, more := range []*[]string{&in.spec.AllowedDomains, &in.spec.DeniedDomains} {
		*more = append(*more, r.some(3, r.host)...)
	}
	for _, more := range []*[]string{&in.spec.AllowedCIDRs, &in.spec.DeniedCIDRs} {
		*more = append(*more, r.some(3, cidr)...)
	}
}

func (r random) request() Request {
	req := Request{
		Stage:    pick(r, []Stage{StageDNS, StageKernel, StageConn, StageHTTP, StageDial}),
		Protocol: pick(r, []Protocol{TCP, TCP, TCP, UDP, ICMP, "", "sctp"}),
		Method:   pick(r, []string{"GET", "POST"}),
		Path:     pick(r, somePaths),
		Port:     pick(r, append([]uint16{0}, somePorts...)),
	}
	if r.IntN(3) > 0 {
		req.Name, _ = name.Parse(pick(r, someNames))
	}
	if r.IntN(4) > 0 {
		req.Addr = netip.MustParseAddr(pick(r, someAddrs))
	}
	return req
}

// compile returns nil if the draw is no valid policy (custom without any list).
func (in interpreter) compile() *Compiled { return in.compileWith(Options{}) }

// compileWith is compile with other options.
func (in interpreter) compileWith(o Options) *Compiled {
	o.Version, o.Headers, o.Protected = 1, in.headers, name.NewProtected(in.exempt, in.own)
	c, err := Compile(in.spec, o)
	if err != nil {
		return nil
	}
	return c
}

func FuzzDecideAgainstInterpreter(f *testing.F) {
	for seed := range nightly.Size[uint64](30, 300) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := random{rand.New(rand.NewPCG(seed, 1))}
		in := r.interpreter()
		c := in.compile()
		if c == nil {
			return
		}
		for range 50 {
			req := r.request()
			got := c.Decide(req)
			verdict, reason := in.decide(req)
			if got.Verdict != verdict || got.Reason != reason {
				t.Fatalf("policy %+v\nexempt %v own %v headers %v\nrequest %+v\ngot  %s %s (%s)\nwant %s %s",
					in.spec, in.exempt, in.own, in.headers, req, got.Verdict, got.Reason, got.Rule, verdict, reason)
			}
			if got.DialName && (!got.Allowed() || req.Name.IsZero()) {
				t.Fatalf("%+v: DialName without an allowed name", req)
			}
			if got.Allowed() && (got.Reason == name.ReasonNotDenied || got.Reason == name.ReasonAllowAll) && got.DialName != in.mustDial(req) {
				t.Fatalf("policy %+v\nrequest %+v: DialName %v", in.spec, req, got.DialName)
			}
		}
	})
}
