package policy

import (
	"net/netip"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// Ceiling is a policy of the operator that bounds the policies of boxes: a box is allowed only destinations that the ceiling allows
// as well. Immutable and safe for concurrent use.
type Ceiling struct {
	policy *Compiled
	below  below // of its domains
}

// ruleCeiling is the rule of decisions without an entry of the ceiling, and the prefix of the others.
const ruleCeiling = "policy.ceiling"

// IsOfCeiling reports whether a decision with this rule comes from the operator's ceiling.
func IsOfCeiling(rule string) bool {
	return rule == ruleCeiling || strings.HasPrefix(rule, ruleCeiling+": ")
}

// NewCeiling returns a ceiling. Its request rules may only deny: a request that an allow rule matched could not be denied by another
// rule, as users of allow rules expect. The error is an *[document.InvalidError] that lists every problem.
func NewCeiling(spec Spec) (*Ceiling, error) {
	var ps document.Problems
	parsed := checkSpec(spec, MaxEntries, &ps)
	for i, r := range spec.Rules {
		if r.Action == match.ActionAllow {
			ps.Add(document.Element("/rules", i)+"/action", `is "allow"; a ceiling takes only rules that deny`)
		}
	}
	if len(spec.Repos) > 0 {
		ps.Add("/repos", "belong into the policies of boxes; a ceiling takes only rules that deny")
	}
	if spec.UpstreamProxy != nil {
		ps.Add("/upstream_proxy", "belongs into the policies of boxes; that of all boxes is proxy.upstream of the configuration")
	}
	if err := ps.Err(); err != nil {
		return nil, err
	}
	parsed = parsed.under(ruleCeiling + ": ")
	parsed.denied = parsed.deniedRanges(spec, MaxEntries, &ps) // with the new texts
	c := build(spec, parsed, nil, 0)
	c.bounds, c.protected = true, &name.Protected{} // the policies of boxes deny protected ranges
	c.plan = c.newKernelPlan(parsed)
	return &Ceiling{c, c.domains.indexBelow()}, nil
}

// JudgesRequests reports whether the ceiling has request rules for a host.
func (c *Ceiling) JudgesRequests(n name.Name, port uint16) bool {
	return c != nil && c.policy.Judges(n, port).Rules
}

// under returns the entries with a prefix to their texts for decisions.
func (p parsedSpec) under(prefix string) parsedSpec {
	for _, list := range [][]domain{p.allowedDomains, p.deniedDomains} {
		for i := range list {
			list[i].rule = prefix + list[i].rule
		}
	}
	for _, list := range [][]cidr{p.allowedCIDRs, p.deniedCIDRs} {
		for i := range list {
			list[i].rule = prefix + list[i].rule
		}
	}
	for i := range p.rules {
		p.rules[i].Rule = prefix + p.rules[i].Rule
	}
	for _, rule := range []*string{&p.cluster.allowed, &p.cluster.denied} {
		if *rule != "" {
			*rule = prefix + *rule
		}
	}
	return p
}

// WithCluster sets the cluster that the entries of the ceiling are about, and returns c, which may be nil. It must not be called once c is in
// use.
func (c *Ceiling) WithCluster(cluster *Cluster) *Ceiling {
	if c != nil {
		c.policy.cluster = cluster
	}
	return c
}

// setCeiling restricts the policy to the decisions and the kernel plan that the ceiling allows as well.
func (c *Compiled) setCeiling(ceiling *Ceiling) {
	if ceiling == nil {
		return
	}
	top := ceiling.policy
	c.ceiling = top
	if c.forwarding != nil {
		c.forwarding.ceiling = top
	}
	if c.reach != nil {
		c.reach.ceiling = top
	}
	c.matches = c.matches || top.matches
	c.ruled = slices.Concat(c.ruled, top.ruled)
	c.plan = c.plan.under(top.plan)
	c.warnings = append(c.warnings, c.beyond(ceiling)...)
}

// limit restricts an allowing decision of the policy by the ceiling.
func (c *Compiled) limit(r Request, d Decision) Decision {
	top := c.decide(r)
	if top.Verdict != Allow {
		if top.Rule == "" {
			top.Rule = ruleCeiling
		}
		return top
	}
	dialName := d.DialName || top.DialName
	if d.Reason == name.ReasonAllowedCIDR && top.Reason != name.ReasonAllowedCIDR {
		d.Reason, d.Rule = name.ReasonNotDenied, ruleCeiling // bytes without a host name pass only to addresses that both list
	}
	d.DialName = dialName
	return d
}

// resolves reports whether this policy, without its ceiling, allows upstream queries for a name.
func (c *Compiled) resolves(n name.Name) bool {
	d := c.decide(Request{Stage: StageDNS, Name: n})
	return d.Allowed() || d.Reason == name.ReasonNotAllowed && c.resolvesOthers(n)
}

// under returns a plan that forwards the traffic that both plans forward, and steers traffic to the proxy if either plan does.
func (p KernelPlan) under(top KernelPlan) KernelPlan {
	out := KernelPlan{
		Version:      p.Version,
		DefaultAllow: p.DefaultAllow && top.DefaultAllow,
		Denied:       unite(p.Denied, top.Denied),
		Protected:    p.Protected,
		SteerAllowed: p.SteerAllowed.With(top.SteerAllowed),
		RejectUDP:    p.RejectUDP.With(top.RejectUDP),
		Cluster:      p.Cluster,
	}
	switch {
	case out.DefaultAllow:
		out.SteerOther = out.SteerAllowed.Clone()
	case p.DefaultAllow:
		out.Allowed, out.SteerOther = top.Allowed, top.SteerOther
	case top.DefaultAllow:
		out.Allowed, out.SteerOther = p.Allowed, p.SteerOther
	default:
		out.Allowed, out.SteerOther = common(p.Allowed, top.Allowed), p.SteerOther.With(top.SteerOther)
	}
	return out
}

// unite returns the union of two lists.
func unite(a, b []netip.Prefix) []netip.Prefix {
	var all name.Ranges
	for _, p := range slices.Concat(a, b) {
		all.Insert(p, "")
	}
	return all.Merged()
}

// common returns the intersection of two lists, each sorted and without overlaps.
func common(a, b []netip.Prefix) (out []netip.Prefix) {
	for len(a) > 0 && len(b) > 0 {
		switch p, q := a[0], b[0]; {
		case p == q:
			out, a, b = append(out, p), a[1:], b[1:]
		case !p.Overlaps(q) && p.Addr().Less(q.Addr()):
			a = a[1:]
		case !p.Overlaps(q):
			b = b[1:]
		case p.Bits() > q.Bits():
			out, a = append(out, p), a[1:]
		default:
			out, b = append(out, q), b[1:]
		}
	}
	return out
}

// beyond warns of entries that the policy allows and the ceiling does not.
func (c *Compiled) beyond(ceiling *Ceiling) []document.Problem {
	var ps document.Problems
	top := ceiling.policy
	if c.open && !top.open {
		ps.Add("/mode", "the operator's policy.ceiling allows less: boxes reach no more than what it lists")
	}
	for i, s := range c.spec.AllowedDomains {
		if p, err := name.ParsePattern(s); err == nil && !ceiling.allowsSome(p) {
			ps.Add(document.Element("/allowed_domains", i), "%s is beyond the operator's policy.ceiling, so it has no effect", name.Quote(s))
		}
	}
	for i, s := range c.spec.AllowedCIDRs {
		if s == ClusterServices && top.listed.allowed == "" && !top.open {
			ps.Add(document.Element("/allowed_cidrs", i), "%s is beyond the operator's policy.ceiling, which does not list it", name.Quote(s))
		}
		if p, err := name.ParseCIDR(s); err == nil && !top.reachesSome(p) {
			ps.Add(document.Element("/allowed_cidrs", i), "%s is beyond the operator's policy.ceiling, so it has no effect", name.Quote(s))
		}
	}
	return ps.List
}

// allowsSome reports whether the ceiling may allow a name that the pattern covers. If addresses are allowed, the name may
// resolve to one.
func (c *Ceiling) allowsSome(p name.Pattern) bool {
	top := c.policy
	switch {
	case top.domains.deniesWholeBut(p, c.below.allows):
		return false
	case top.open || len(top.spec.AllowedCIDRs) > 0:
		return true
	}
	return top.domains.allowsAbove(p) || p.IsWildcard() && c.below.allows(p)
}

// reachesSome reports whether the policy may allow an address of the prefix. If names are allowed, one may resolve to it.
func (c *Compiled) reachesSome(p netip.Prefix) bool {
	if _, denied := c.denied.CoveredBy(p); denied {
		return false
	}
	return c.open || len(c.spec.AllowedDomains) > 0 || c.allowed.Overlaps(p)
}
