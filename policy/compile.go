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

// Compiled is a policy in force, together with the header rules of its box and the protected ranges: immutable, and
// safe for concurrent use. The zero value and nil deny.
type Compiled struct {
	spec       Spec
	version    uint64
	protected  *name.Protected
	domains    *domains
	denied     name.Ranges
	allowed    name.Ranges
	anyName    portRules    // bare "*" in allowed_domains: allows connections without a name, too
	open       bool         // what is in no list is allowed
	namePorts  name.PortSet // where names matter although the address is allowed: denied_domains or a rule covers them
	ruledPorts name.PortSet // that a header rule or a request rule names, or 80 and 443 if one covers every port
	headers    headerTable
	rules      []match.CompiledRule
	matches    bool           // some rule, for headers or requests, looks at header fields
	ruled      []name.Pattern // hosts of header rules, ports filled in, and of request rules
	plan       KernelPlan
	warnings   []document.Problem
	ceiling    *Compiled      // what the operator allows at most; nil: everything
	forwarding *Compiled      // see Forwarding
	withheld   *Decision      // instead of whatever is allowed; nil: nothing is withheld
	upstream   *UpstreamProxy // by which servers are connected to; nil: directly
	reach      *Compiled      // decides about connections to upstream itself
	source     Source         // from where connections leave; zero: from wherever the host chooses
	lacks      lacks          // of the source
}

// Options are what a policy is compiled from besides its [Spec]. With the zero value there are no header rules, and every
// address is protected.
type Options struct {
	Version   uint64
	Headers   []HeaderRule            // the merged rules of [MergeHeaders]
	Protected *name.Protected         // nil: the ranges are not known, and every address is protected
	Ceiling   *Ceiling                // the operator's policy above this one; nil takes nothing away
	Upstream  *HostUpstream           // the operator's proxy, which reaches that of the policy if there is one; nil: none
	Source    Source                  // from where everything leaves; zero: from wherever the host chooses
	Unusable  func(netip.Addr) string // says why nothing can leave from an address of Source now, or ""; nil: nothing can
	Withheld  Withheld                // why the box may reach nothing for now; zero: it may
}

// Withheld is a reason, which is not the policy's, for which a box may reach nothing for now: what the policy denies is denied as
// before, and what it allows is denied with this reason and rule.
type Withheld struct {
	Reason name.Reason
	Rule   string
}

// Compile checks a policy and makes it ready to decide, from all that it depends on: nothing is changed afterwards. The error is
// an *[document.InvalidError] that lists every problem.
func Compile(spec Spec, o Options) (*Compiled, error) {
	var ps document.Problems
	parsed := checkSpec(spec, MaxEntries+MostBeside, &ps)
	table := newHeaderTable(o.Headers, &ps)
	if err := ps.Err(); err != nil {
		return nil, err
	}
	c := build(spec, parsed, o.Headers, o.Version)
	c.protected, c.headers = o.Protected, table
	c.matches = c.matches || table.matches
	c.plan = c.newKernelPlan(parsed)
	c.setUpstream(spec.UpstreamProxy)
	c.warnings = c.newWarnings(parsed, o.Headers)
	if slices.ContainsFunc(o.Headers, func(r HeaderRule) bool { return r.OnConnections().Redirect != nil }) {
		c.forwarding = c.newReach(o.Protected.Forwarding())
	}
	// Each of these takes away from what those before it allow, also from the policies for connections in the place of the box.
	c.setCeiling(o.Ceiling)
	c.setHostUpstream(o.Upstream)
	c.setSource(o.Source, o.Unusable)
	c.setWithheld(o.Withheld)
	return c, nil
}

// Forwarding returns the policy for connections to the proxies that rules forward to, which are not the box's: all may
// be reached but what is protected, and what the operator's ceiling does not allow. It is nil, and denies, where no rule
// forwards.
func (c *Compiled) Forwarding() *Compiled {
	if c == nil {
		return nil
	}
	return c.forwarding
}

// build makes the part of a policy that does without the protected ranges and the values of header rules.
func build(spec Spec, parsed parsedSpec, headers []HeaderRule, version uint64) *Compiled {
	c := &Compiled{
		spec:    spec.clone(),
		version: version,
		domains: newDomains(parsed.deniedDomains, parsed.allowedDomains),
		open:    spec.DefaultAllow(),
		rules:   parsed.rules,
	}
	for _, e := range parsed.deniedCIDRs {
		c.denied.AddDenied(e.prefix, e.rule)
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

// Tokens returns the variables that the box's environment has for its placeholders, and their tokens.
func (c *Compiled) Tokens() map[string]string {
	out := map[string]string{}
	if c != nil {
		c.headers.eachPlaceholder(func(p rule.Placeholder) { out[p.Variable] = p.Token })
	}
	return out
}

// PlaceholderVariable returns the variable that a token of this box stands for, or "" if no rule has it.
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

// RuledNames returns the names, written out in full in header rules and request rules, whose requests on the port are
// judged. Hosts covered by a wildcard are not among them.
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

// ResolvesOthers reports whether dns: resolve is in force for a name that is not allowed by itself: it is resolved all the
// same, A and AAAA only, and the answers limited to what Decide allows by address.
func (c *Compiled) ResolvesOthers(n name.Name) bool {
	if c == nil || c.withheld != nil {
		return false
	}
	if c.ceiling == nil {
		return c.spec.resolvesOthers()
	}
	return c.resolves(n) && c.ceiling.resolves(n)
}

// AnswerDenied returns how DNS answers for a name that may not be reached; the zero name stands for one that no host has. Names
// below the search list of the box do not exist, nor do single labels, unless the policy says otherwise: the resolver of the
// box must go on to the name that was meant, which may be allowed. It opens nothing, whoever wrote the list.
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

// Kernel returns what nftables is to enforce by itself; for nil, a plan that forwards and steers nothing. Callers must
// not modify its slices.
func (c *Compiled) Kernel() KernelPlan {
	if c == nil {
		return KernelPlan{Protected: (*name.Protected)(nil).Prefixes()}
	}
	return c.plan
}

// Warnings returns the entries of the policy and the header rules that have no effect. Pointers into the policy are
// those of [dialect.ParseSpec]; those of header rules are "/attach_headers/" and the pattern.
func (c *Compiled) Warnings() []document.Problem {
	if c == nil {
		return nil
	}
	return append([]document.Problem(nil), c.warnings...)
}

// Live is the one mutable cell of a box's policy. The zero value holds nothing and denies. Safe for concurrent use.
type Live struct{ p atomic.Pointer[Compiled] }

// Load returns the policy in force, or nil (which denies) when none was stored.
func (l *Live) Load() *Compiled { return l.p.Load() }

// Store puts c in force for every decision that begins afterwards.
func (l *Live) Store(c *Compiled) { l.p.Store(c) }

// setWithheld denies what the policy allows, and has the kernel forward nothing.
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
