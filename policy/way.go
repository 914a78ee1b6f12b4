package policy

import "boxgate/policy/name"

// This file holds policies against upstream proxies: what goes by which, and what has no way.

// HostUpstream is the upstream proxy of all boxes: the operator's, which may be at any address.
type HostUpstream struct{ proxy *UpstreamProxy }

// NewHostUpstream makes a proxy that of all boxes. there are the names that it resolves, and direct the domains and
// networks that are reached without it. The error is about one of these.
func NewHostUpstream(p UpstreamProxy, there, direct []string) (*HostUpstream, error) {
	p.there, p.direct, p.directNet = nil, nil, nil
	if err := p.leaveTo(there); err != nil {
		return nil, err
	}
	if err := p.except(direct); err != nil {
		return nil, err
	}
	p.seal("")
	return &HostUpstream{&p}, nil
}

// reach returns a policy for connections to the proxy.
func (h *HostUpstream) reach() *Compiled {
	out := build(Spec{Mode: ModeAllowAll}, parsedSpec{}, nil, 0)
	out.protected = &name.Protected{}
	return out
}

// setHostUpstream makes connections of the box go by the operator's proxy, unless they go by one of its own: that one is then
// reached by the operator's.
func (c *Compiled) setHostUpstream(h *HostUpstream) {
	if h == nil {
		return
	}
	for _, to := range []*Compiled{c.forwarding, c.reach} {
		if to != nil {
			to.upstream, to.reach = h.proxy, h.reach()
		}
	}
	if c.upstream != nil {
		c.upstream.seal(h.proxy.Key())
		return
	}
	c.upstream, c.reach = h.proxy, h.reach()
	c.plan.leaveNothing()
}

// newReach makes a policy for connections that are not the box's but that its rules lead to: all may be reached but what is
// protected.
func (c *Compiled) newReach(protected *name.Protected) *Compiled {
	out := build(Spec{Mode: ModeAllowAll}, parsedSpec{}, nil, c.version)
	out.protected = protected
	return out
}

// setUpstream makes connections go by the proxy of the policy, with the login that a header rule has for it, and for the way in
// which it is spoken to.
func (c *Compiled) setUpstream(s *UpstreamSpec) {
	if s == nil {
		return
	}
	p, err := ParseUpstream(s.URL)
	if err != nil || p.leaveTo(s.ResolveThere) != nil { // checked before
		p = &UpstreamProxy{}
	}
	if l := c.headers.proxies[headerKey{p.Name.String(), false, p.Port}]; l.IsFor(p.Scheme) {
		p.Login = l
	}
	p.seal("")
	c.upstream, c.reach = p, c.newReach(c.protected)
	c.plan.leaveNothing()
}

// Reach returns the policy for connections to the upstream proxy itself, which are not the box's. It is nil, and denies, if the
// policy has another proxy, or none.
func (c *Compiled) Reach(by *UpstreamProxy) *Compiled {
	if c == nil || c.upstream == nil || c.upstream.Key() != by.Key() {
		return nil
	}
	return c.reach
}

// ResolvedThere reports whether an upstream proxy resolves a name, so that nobody here is asked for its addresses.
func (c *Compiled) ResolvedThere(n name.Name) bool {
	return c != nil && c.upstream != nil && c.upstream.resolves(n, 0) && !c.upstream.exceptsName(n, 0)
}

// by completes a route that lets bytes pass: it says by which proxy and from where, and refuses what would have to change over to another
// way. A name that a client merely claims for an address makes no exception.
func (q *question) by(rt Route) Route {
	p, r := q.upstream, rt.Request
	if p != nil && (rt.ByName && p.exceptsName(r.Name, r.Port) || !rt.ByName && p.exceptsAddr(r.Addr)) {
		p = nil
	}
	if q.e.Settled && q.e.By != p.Key() {
		return q.refuse(r, name.ReasonPolicyChanged, NeedNothing)
	}
	if q.e.Settled && q.e.From != q.source {
		return q.refuse(r, name.ReasonPolicyChanged, NeedNothing)
	}
	rt.Upstream, rt.From = p, q.source
	rt.There = p != nil && rt.ByName && p.resolves(r.Name, r.Port) && (rt.Action == Broker || !q.isUnread())
	return rt
}

// goesFar reports whether what names its host goes to the name because it goes by an upstream proxy, which may have to be
// given it, or be left out for it.
func (q *question) goesFar(n name.Name) bool {
	return q.upstream != nil && !n.IsZero() && q.resolvable(n)
}

// Settle returns the evidence by which what passes under the route is judged from now on: it keeps to the upstream proxy, or
// to going without, and to the addresses that it leaves from.
func (rt Route) Settle(e Evidence) Evidence {
	switch rt.Action {
	case AwaitServer, Splice, Forward, Broker:
		e.Settled, e.By, e.From = true, rt.Upstream.Key(), rt.From
	}
	return e
}

// ruleUpstream is the rule of decisions on what an upstream proxy does not take.
const ruleUpstream = "only TCP goes by the upstream proxy"

// leaveNothing takes everything that the kernel would forward by itself out of the plan: TCP goes to the gateway's proxy,
// which knows the way, and nothing else has one.
func (p *KernelPlan) leaveNothing() {
	if p.DefaultAllow || len(p.Allowed) > 0 {
		p.SteerOther = name.PortSet{All: true}
	}
	p.DefaultAllow, p.Allowed = false, nil
	p.SteerAllowed, p.RejectUDP = name.PortSet{All: true}, name.PortSet{All: true}
}

// GoesWith reports whether connections go by a proxy that is used with a secret of the configuration, or that is itself reached
// by such a one.
func (c *Compiled) GoesWith(secret string) bool {
	if c == nil || c.upstream == nil {
		return false
	}
	l := c.upstream.Login
	return l != nil && l.Source == secret || c.reach.GoesWith(secret)
}
