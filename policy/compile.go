package policy

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Compiled is a policy together with the header rules of its box and the protected ranges. It is immutable and safe for
// concurrent use. The zero value and nil deny.
type Compiled struct {
	spec       Spec
	version    uint64
	protected  *name.Protected
	domains    *domains
	denied     *name.Ranges // with precedence: specific, without the ranges of longer allowed prefixes
	allowed    name.Ranges  // wherever denied does not contain the address
	anyName    portRules    // bare "*" in allowed_domains, which also allows connections without a name
	open       bool         // destinations in no list are allowed
	namePorts  name.PortSet // ports covered by denied_domains or a rule, where names matter even if the address is allowed
	ruledPorts name.PortSet // ports of header rules and request rules; 80 and 443 for a rule that covers every port
	headers    headerTable
	rules      []match.CompiledRule
	matches    bool           // some rule, for headers or requests, looks at header fields
	ruled      []name.Pattern // of header rules, with ports, and of request rules
	plan       KernelPlan
	warnings   []document.Problem
	ceiling    *Compiled      // upper bound set by the operator; nil: unlimited
	forwarding *Compiled      // see Forwarding
	withheld   *Decision      // replaces every allowing decision, unless nil
	upstream   *UpstreamProxy // for connections to servers; nil: connect directly
	reach      *Compiled      // decides about connections to upstream itself
	source     Source         // source addresses of connections; zero: chosen by the host
	lacks      lacks          // of the source
	auditing   *auditing      // nil: the policy is enforced
	byName     bool           // destinations in no list are dialled by their name, if they have one
	services   Services       // of the operator; nil: there are none
	named      []name.Name    // services that the policy lists
	bounds     bool           // a ceiling, which does not decide whether a service exists
	cluster    *Cluster       // opened by the operator; nil: there is none
	listed     clusterEntries // of the policy about it
	fence      func() bool    // closed for rules of the fleet; nil: always
}

// Options are the inputs of [Compile] in addition to the [Spec]. The zero value has no header rules and protects every
// address.
type Options struct {
	Version   uint64
	Headers   []HeaderRule            // the merged rules of [MergeHeaders]
	Protected *name.Protected         // nil: the ranges are unknown, and every address is protected
	Ceiling   *Ceiling                // upper bound set by the operator; nil: unlimited
	Upstream  *HostUpstream           // proxy of the operator, also used to connect to the proxy of the policy; nil: the operator has no proxy
	Source    Source                  // source addresses of all traffic; zero: chosen by the host
	Unusable  func(netip.Addr) string // returns why an address of Source cannot be used now, or ""; nil: no address can be used
	Withheld  Withheld                // denies everything for now; zero: no restriction
	Services  Services                // services of the operator; nil: there are none
	Cluster   *Cluster                // the cluster that the operator opens; nil: there is none
	Fence     func() bool             // whether rules of the fleet must not be used now, see [OfFleet]; called for each request, so it must not block; nil: they must not
	// Audit lets all traffic pass that the policy refuses, except for denied lists, protected ranges and the ceiling; without
	// credentials of the gateway, and with reason [name.ReasonWouldDeny].
	Audit bool
}

// Withheld temporarily denies everything, for a reason outside the policy. Decisions of the policy to deny are unchanged. Decisions to allow
// become denials with this reason and rule.
type Withheld struct {
	Reason name.Reason
	Rule   string
}

// Compile checks a policy and compiles it with everything that it depends on. The error is an *[document.InvalidError] that lists every
// problem.
func Compile(spec Spec, o Options) (*Compiled, error) {
	var ps document.Problems
	parsed := checkSpec(spec, MaxEntries+MostBeside+1, &ps) // amend.Beside denies one more entry if a list would become empty
	table := newHeaderTable(o.Headers, &ps)
	if err := ps.Err(); err != nil {
		return nil, err
	}
	c := build(spec, parsed, o.Headers, o.Version)
	c.protected, c.headers, c.fence = o.Protected, table, o.Fence
	c.matches = c.matches || table.matches
	c.plan = c.newKernelPlan(parsed)
	c.setUpstream(spec.UpstreamProxy)
	c.warnings = c.newWarnings(parsed, o.Headers)
	c.setServices(o.Services, parsed)
	c.setCluster(o.Cluster, parsed)
	if slices.ContainsFunc(o.Headers, func(r HeaderRule) bool { return r.OnConnections().Redirect != nil }) {
		c.forwarding = c.newReach(o.Protected.Forwarding())
	}
	// Each of these restricts the result of the previous ones, also for connections that the gateway makes instead of the box.
	c.setCeiling(o.Ceiling)
	c.setHostUpstream(o.Upstream)
	c.setSource(o.Source, o.Unusable)
	c.setWithheld(o.Withheld)
	if !o.Audit {
		return c, nil
	}
	o.Audit = false
	enforced, err := Compile(spec, o)
	if err != nil {
		return nil, err
	}
	c.setAuditing(enforced, parsed, o)
	return c, nil
}

// Forwarding returns the policy for connections to the proxies of rules that forward. It allows everything except protected
// ranges and destinations that the operator's ceiling denies. It is nil, and denies, if no rule forwards.
func (c *Compiled) Forwarding() *Compiled {
	if c == nil {
		return nil
	}
	return c.forwarding
}

// build compiles the part of a policy that does not depend on the protected ranges and the values of header rules.
func build(spec Spec, parsed parsedSpec, headers []HeaderRule, version uint64) *Compiled {
	c := &Compiled{
		spec:    spec.clone(),
		version: version,
		domains: newDomains(parsed, spec.Precedence == PrecedenceSpecific),
		denied:  parsed.denied,
		open:    spec.DefaultAllow(),
		rules:   parsed.rules,
		listed:  parsed.cluster,
	}
	if c.denied == nil {
		c.denied = &name.Ranges{}
	}
	for _, e := range parsed.allowedCIDRs {
		c.allowed.AddAllowed(e.prefix, e.rule)
	}
	c.matches = slices.ContainsFunc(c.rules, func(r match.CompiledRule) bool { return r.Match.LooksAtFields() })
	c.anyName = c.domains.any.below.allowed
	c.findPorts(parsed, headers)
	return c
}

// Version returns the version given to [Compile]; 0 for nil.
func (c *Compiled) Version() uint64 {
	if c == nil {
		return 0
	}
	return c.version
}

// Spec returns the policy as written.
func (c *Compiled) Spec() Spec {
	if c == nil {
		return Spec{Mode: ModeDenyAll}
	}
	return c.spec.clone()
}

// HasPlaceholders reports whether any header rule has a placeholder.
func (c *Compiled) HasPlaceholders() bool { return c != nil && c.headers.placeholders }

// Tokens returns the tokens of all placeholders by their environment variables.
func (c *Compiled) Tokens() map[string]string {
	out := map[string]string{}
	if c != nil {
		c.headers.eachPlaceholder(func(p rule.Placeholder) { out[p.Variable] = p.Token })
	}
	return out
}

// PlaceholderVariable returns the variable of a token of this box, or "" if no rule has it.
func (c *Compiled) PlaceholderVariable(token string) (variable string) {
	if c == nil || token == "" {
		return ""
	}
	c.headers.eachPlaceholder(func(p rule.Placeholder) {
		if p.Token == token {
			variable = p.Variable
		}
	})
	return variable
}

// Intercepts reports whether a header rule or a request rule covers the name and port, so that TLS must be terminated
// to apply it.
func (c *Compiled) Intercepts(n name.Name, port uint16) bool {
	if c == nil || n.IsZero() {
		return false
	}
	return c.headers.find(n, port) != nil || c.judgesRequests(n, port)
}

// judgesRequests reports whether a request rule covers the name and port.
func (c *Compiled) judgesRequests(n name.Name, port uint16) bool {
	for i := range c.rules {
		if c.rules[i].Covers(n, port) {
			return true
		}
	}
	return c.ceiling.Intercepts(n, port)
}

// NamesDecide reports whether a TCP connection to the port must be judged by its name although its address is allowed:
// denied_domains, a header rule or a request rule covers the port.
func (c *Compiled) NamesDecide(port uint16) bool {
	return c != nil && (c.namePorts.Contains(port) || c.ceiling.NamesDecide(port))
}

// RuledNames returns the names in header rules and request rules that cover the port, without wildcards.
func (c *Compiled) RuledNames(port uint16) []name.Name {
	if c == nil {
		return nil
	}
	var names []name.Name
	for _, p := range c.ruled {
		if !p.IsWildcard() && p.Match(p.Name(), port) && !slices.Contains(names, p.Name()) {
			names = append(names, p.Name())
		}
	}
	return names
}

// RulesEveryHost reports whether a request rule covers every host on the port.
func (c *Compiled) RulesEveryHost(port uint16) bool {
	return c != nil && slices.ContainsFunc(c.ruled, func(p name.Pattern) bool {
		return p.IsWildcard() && p.Name().IsZero() && (p.Port() == 0 || p.Port() == port)
	})
}

// ResolvesOthers reports whether dns: resolve applies to a name that is not allowed. Such a name is resolved, for A and AAAA
// only, and the answers are limited to addresses that Decide allows. Names of services never are, and names of the cluster if its service
// addresses are allowed, whatever the mode of DNS.
func (c *Compiled) ResolvesOthers(n name.Name) bool {
	if c == nil || c.withheld != nil || n.IsService() {
		return false
	}
	if c.ceiling == nil {
		return c.resolvesOthers(n)
	}
	return c.resolves(n) && c.ceiling.resolves(n)
}

// AnswerDenied returns the DNS answer for a name that is not allowed; the zero name is a name that is not a host name. Unless the policy sets
// denied_names, names below the search list of the box and single labels do not exist, so that the resolver of the box tries the
// next name of its list, which may be allowed. A search list grants no access, whoever wrote it.
func (c *Compiled) AnswerDenied(n name.Name, search []name.Name) DeniedNames {
	switch {
	case c == nil:
		return DeniedSink
	case c.spec.DeniedNames != "":
		return c.spec.DeniedNames
	case n.IsZero():
		return DeniedSink
	case !strings.Contains(n.String(), "."), slices.ContainsFunc(search, n.IsWithin):
		return DeniedNXDOMAIN
	}
	return DeniedSink
}

// Kernel returns the part of the policy that nftables enforces. The plan of a nil policy neither forwards nor redirects
// packets. Callers must not modify its slices.
func (c *Compiled) Kernel() KernelPlan {
	if c == nil {
		return KernelPlan{Protected: (*name.Protected)(nil).Prefixes()}
	}
	return c.plan
}

// Warnings returns the warnings about entries of the policy and header rules. Pointers into the policy are as in
// [dialect.ParseSpec]. Pointers to header rules begin with "/attach_headers/" and the pattern.
func (c *Compiled) Warnings() []document.Problem {
	if c == nil {
		return nil
	}
	return append([]document.Problem(nil), c.warnings...)
}

// Live is the current policy of a box. The zero value has no policy and denies. Safe for concurrent use.
type Live struct{ p atomic.Pointer[Compiled] }

// Load returns the current policy; nil, which denies, before the first Store.
func (l *Live) Load() *Compiled { return l.p.Load() }

// Store makes c the current policy for all decisions that begin afterwards.
func (l *Live) Store(c *Compiled) { l.p.Store(c) }

// setWithheld denies everything that the policy allows, and stops forwarding in the kernel.
func (c *Compiled) setWithheld(w Withheld) {
	if w == (Withheld{}) {
		return
	}
	c.withheld = &Decision{Reason: w.Reason, Rule: w.Rule}
	c.plan = KernelPlan{Version: c.plan.Version, Denied: c.plan.Denied, Protected: c.plan.Protected, RejectUDP: c.plan.RejectUDP}
	if c.forwarding != nil {
		c.forwarding.setWithheld(w)
	}
}

// Precedence selects the entry that decides where an allowed and a denied entry of the same kind cover a destination. With the
// empty value denied entries win.
type Precedence string

// PrecedenceSpecific is the precedence of the more specific entry: of the longer name, where a name is longer than a wildcard that covers
// it, or of the longer prefix. Among equals denied entries win. Ports do not count. Names and addresses are not compared: a destination
// whose name or address is denied in this way is denied.
const PrecedenceSpecific Precedence = "specific"

// Overruled returns a policy of mode custom with a denied entry, a name or a CIDR, that wins over all allowed ones. It is not part of the
// policy as a document.
func (s Spec) Overruled(denied string) Spec {
	s.overruling = append(slices.Clip(s.overruling), denied)
	return s
}

// IsDocument reports whether the policy is whole as a document, without entries of [Spec.Overruled].
func (s Spec) IsDocument() bool { return len(s.overruling) == 0 }

// addOverruling reads the entries of [Spec.Overruled].
func (p *parsedSpec) addOverruling(list []string, ps *document.Problems) {
	if ps.TooMany("/leases", len(list), MostBeside) {
		return
	}
	for i, s := range list {
		if s == ClusterServices {
			p.cluster.denied = s
		} else if prefix, err := name.ParseCIDR(s); err == nil {
			p.overrulingCIDRs = append(p.overrulingCIDRs, cidr{prefix, s})
		} else if pattern, ok := ps.Pattern(document.Element("/leases", i), s); ok {
			p.overrulingDomains = append(p.overrulingDomains, domain{pattern, s})
		}
	}
}

// maxSplit is the largest number of steps to split denied CIDRs at their exceptions. About half as many ranges result.
const maxSplit = 1 << 17

// deniedRanges returns the denied addresses. The number of steps is bounded. Compile takes twice as many: MostBeside temporary exceptions
// take up to 324 each, and one for each denied CIDR that a shorter one contains.
func (p *parsedSpec) deniedRanges(s Spec, most int, ps *document.Problems) (denied *name.Ranges) {
	denied = &name.Ranges{}
	if s.Precedence == PrecedenceSpecific {
		denied = p.splitRanges(most, ps)
	} else {
		for _, e := range p.deniedCIDRs {
			denied.AddDenied(e.prefix, e.rule)
		}
	}
	for _, e := range p.overrulingCIDRs {
		denied.AddDenied(e.prefix, e.rule)
	}
	return denied
}

// splitRanges returns the denied addresses without their exceptions.
func (p *parsedSpec) splitRanges(most int, ps *document.Problems) *name.Ranges {
	var split name.Split
	for _, e := range p.deniedCIDRs {
		split.Deny(e.prefix, e.rule)
	}
	for _, e := range p.allowedCIDRs {
		split.Allow(e.prefix)
	}
	steps := maxSplit
	if most > MaxEntries {
		steps *= 2
	}
	denied, ok := split.Ranges(steps)
	if !ok {
		ps.Add("/denied_cidrs", `is split into more than %d ranges by its exceptions in allowed_cidrs; use fewer or wider exceptions, or leave out denied ranges: addresses in no list are denied anyway`, maxSplit/2)
		return &name.Ranges{}
	}
	return denied
}
