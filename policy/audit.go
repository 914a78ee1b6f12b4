package policy

import (
	"slices"

	"boxgate/policy/name"
)

// This part compiles policies that are audited instead of enforced: traffic that the policy refuses passes for a time, so that an entry can
// be written for it.

// auditing holds both parts of an audited policy. A destination is judged by enforced first. Only if that refuses it, rest decides.
type auditing struct {
	enforced *Compiled // the policy itself; only traffic that it allows gets credentials
	rest     *Compiled // the same denied lists, protected ranges and ceiling, allowing everything else; has no header rules
}

// setAuditing has the policy audited. c must be complete; enforced is the same policy, which decides first.
func (c *Compiled) setAuditing(enforced *Compiled, parsed parsedSpec, o Options) {
	rest := enforced.newRest(parsed, o)
	c.auditing = &auditing{enforced, rest}
	if c.withheld == nil {
		c.plan = c.plan.audited(rest.plan)
	}
}

// newRest returns the policy for destinations that c refuses. Denied entries of c win in it whatever the precedence, as c has
// already decided about their exceptions.
func (c *Compiled) newRest(parsed parsedSpec, o Options) *Compiled {
	spec := Spec{Mode: ModeCustom, DeniedCIDRs: c.spec.DeniedCIDRs}
	denied := parsedSpec{
		deniedDomains: slices.Concat(parsed.deniedDomains, parsed.overrulingDomains),
		deniedCIDRs:   slices.Concat(parsed.deniedCIDRs, parsed.overrulingCIDRs),
		denied:        parsed.denied,
	}
	for _, d := range denied.deniedDomains {
		spec.DeniedDomains = append(spec.DeniedDomains, d.rule)
	}
	if len(denied.deniedDomains)+len(denied.deniedCIDRs) == 0 {
		spec.Mode = ModeAllowAll
	}
	rest := build(spec, denied, nil, o.Version)
	rest.cluster = c.cluster                        // none of it is listed
	rest.protected, rest.byName = c.protected, true // so that names in the log are names that were reached
	rest.plan = rest.newKernelPlan(denied)
	// QUIC and DNS over QUIC hide names. Clients fall back to TCP and to the DNS server of the gateway.
	for _, port := range append(slices.Clone(c.plan.RejectUDP.Ports), portQUIC, portDoT) {
		rest.plan.RejectUDP.Add(port)
	}
	rest.plan.RejectUDP.All = rest.plan.RejectUDP.All || c.plan.RejectUDP.All
	rest.setCeiling(o.Ceiling)
	if c.upstream != nil { // the same proxy, with the same login
		rest.upstream, rest.reach = c.upstream, c.reach
		rest.plan.leaveNothing()
	}
	rest.setSource(o.Source, o.Unusable)
	rest.setWithheld(o.Withheld)
	return rest
}

// audited returns the plan of an audited policy: p for the addresses that it allows, and rest for others. All other TCP goes to the
// proxy, which sees names. If rest is not open, because of the ceiling or an upstream proxy, UDP and ICMP pass only as in p.
func (p KernelPlan) audited(rest KernelPlan) KernelPlan {
	if p.DefaultAllow {
		return p
	}
	p.SteerOther = name.PortSet{All: true}
	p.Denied = unite(p.Denied, rest.Denied)
	if rest.DefaultAllow {
		p.DefaultAllow, p.RejectOther = true, rest.RejectUDP.Clone()
	}
	return p
}

// IsAudited reports whether the policy is audited instead of enforced.
func (c *Compiled) IsAudited() bool { return c != nil && c.auditing != nil }

// Enforced returns the policy as it would be without an audit. Connections that carry credentials of the gateway are judged by it.
func (c *Compiled) Enforced() *Compiled {
	if c.IsAudited() {
		return c.auditing.enforced
	}
	return c
}

// restFor returns the policy that decides about a destination if the enforced one refuses it, or nil.
func (a *auditing) restFor(kernel *KernelPlan, p Protocol) *Compiled {
	if p != TCP && p != "" && !kernel.DefaultAllow {
		return nil
	}
	return a.rest
}

// decideAudited is Decide for an audited policy.
func (c *Compiled) decideAudited(r Request) Decision {
	d := c.auditing.enforced.Decide(r)
	rest := c.auditing.restFor(&c.plan, r.Protocol)
	if r.Stage == StageDNS { // its protocol is that of the query
		rest = c.auditing.rest
	}
	if d.Verdict == Allow || d.Unread != 0 || rest == nil {
		return d
	}
	other := rest.Decide(r)
	if other.Verdict != Allow && d.isUnlisted() && !c.auditing.enforced.ResolvesOthers(r.Name) {
		return other
	}
	return other.insteadOf(d)
}

// isUnlisted reports whether an audit lifts the denial, so that a denial by the rest has another cause.
func (d Decision) isUnlisted() bool {
	return d.Reason == name.ReasonNotAllowed || d.Reason == name.ReasonDenyAll
}

// insteadOf returns the decision for traffic that the policy itself refuses by the decision was.
func (d Decision) insteadOf(was Decision) Decision {
	if d.Verdict != Allow {
		return was
	}
	d.Reason, d.Rule = name.ReasonWouldDeny, string(was.Reason)
	if was.Rule != "" {
		d.Rule += ": " + was.Rule
	}
	return d
}

// routeAudited is Route for an audited policy. A connection that may carry credentials (Evidence.Enforced) never leaves the enforced
// policy.
func (c *Compiled) routeAudited(r Request, e Evidence) Route {
	rt := c.auditing.enforced.Route(r, e)
	rest := c.auditing.restFor(&c.plan, r.Protocol)
	if rt.Action != Refuse || rt.Needs != NeedNothing || rt.Decision.Unread != 0 || e.Enforced || rest == nil {
		return rt
	}
	if len(rest.ruled) == 0 {
		e.Ruled = No
	}
	other := rest.Route(r, e)
	if other.Action == Refuse {
		if other.Needs != NeedNothing || rt.Decision.isUnlisted() {
			return other
		}
		return rt
	}
	other.Audited = true
	if other.Decision.Allowed() {
		other.Decision = other.Decision.insteadOf(rt.Decision)
	}
	return other
}
