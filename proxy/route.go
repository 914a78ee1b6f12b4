package proxy

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"boxgate/policy"
)

// This file asks the policy how connections and requests may pass, and gathers the evidence that takes time.

// recheckLookup bounds what is looked up while a change of the policy waits for it.
const recheckLookup = 60 * time.Millisecond

// routed is how a connection or a request passes, with the question: it is asked again later. The zero value refuses.
type routed struct {
	policy.Route
	asked policy.Request
	known policy.Evidence
}

// route asks the policy how something may pass.
func (p *Proxy) route(ctx context.Context, c *policy.Compiled, box *policy.Box, r policy.Request, e policy.Evidence) routed {
	return p.gather(ctx, c, box, routed{asked: r, known: e}, false)
}

// reroute asks a policy about what passes already, for which other hosts may have rules by now. A change of the policy
// waits for the answer: what was found lately will do, and no address is looked for that was not known.
func (p *Proxy) reroute(c *policy.Compiled, box *policy.Box, was routed) policy.Route {
	ctx, cancel := context.WithTimeout(p.base, recheckLookup)
	defer cancel()
	was.known.Ruled, was.known.NoAddr = policy.Unknown, true
	return p.gather(ctx, c, box, was, true).Route
}

// gather asks the policy, and again with each piece of evidence that the answer turns on. stale is that of [Proxy.ruled].
func (p *Proxy) gather(ctx context.Context, c *policy.Compiled, box *policy.Box, rt routed, stale bool) routed {
	for {
		rt.Route = c.Route(rt.asked, rt.known)
		switch rt.Needs {
		case policy.NeedAddr:
			rt.asked.Addr, rt.known.NoAddr = p.locate(ctx, c, box, rt.Request, rt.known.Bound), true
		case policy.NeedRuled:
			rt.known.Ruled = policy.AnswerOf(p.ruled(ctx, c, box, rt.leadsTo(), stale))
		case policy.NeedOwned:
			rt.known.Owned = policy.AnswerOf(p.owns(ctx, box, rt.Request.Name, rt.known.Dialled))
		default:
			return rt
		}
	}
}

// leadsTo is the address in question: the one that is dialled, or before that is known the one that was asked for.
func (rt routed) leadsTo() netip.AddrPort {
	if rt.known.Dialled.IsValid() {
		return netip.AddrPortFrom(rt.known.Dialled, rt.asked.Port)
	}
	return netip.AddrPortFrom(rt.asked.Addr, rt.asked.Port)
}

// at returns the question about one address that is to be dialled for what is routed.
func (rt routed) at(a netip.Addr) (policy.Request, policy.Evidence) {
	owned := policy.Unknown
	if rt.ByName {
		owned = policy.Yes // that is how it was found
	}
	e := rt.Held(rt.known, a, owned)
	if a != rt.asked.Addr.Unmap() {
		e.Ruled = policy.Unknown
	}
	return rt.asked, e
}

// overruledBy returns why what passes may not go on under a route that was found later, or nil.
func (rt routed) overruledBy(now policy.Route) *policy.DeniedError {
	if now.Keeps(rt.Action) {
		return nil
	}
	d := now.Decision
	if now.Action != policy.Refuse { // it would have to pass in another way
		d = policy.Decision{Reason: policy.ReasonPolicyChanged, Version: d.Version}
	}
	d.Verdict = policy.Deny
	return &policy.DeniedError{Request: now.Request, Decision: d}
}

// ruled reports whether an address may be that of a host whose requests are judged or changed on the port: every host is
// one, the box was told so, or the gateway finds it there itself. Hosts that a wildcard covers are known by what the box was
// told alone. A name that cannot be looked up now may have any address; but where stale says so, what was found in the last
// hour is enough.
func (p *Proxy) ruled(ctx context.Context, c *policy.Compiled, box *policy.Box, to netip.AddrPort, stale bool) bool {
	if !to.Addr().IsValid() || c.RulesEveryHost(to.Port()) {
		return true
	}
	at := policy.Untranslated(to.Addr())
	told := append(p.cfg.Resolver.GrantedNames(box.ID, at), p.cfg.Resolver.GrantedNames(box.ID, to.Addr())...)
	if slices.ContainsFunc(told, func(n policy.Name) bool { return c.Intercepts(n, to.Port()) }) {
		return true
	}
	names := c.RuledNames(to.Port())
	return len(names) > 0 && p.usages.of(box).ruled.contains(ctx, p.cfg.Resolver, box, names, at, stale)
}

// owns reports whether a name is known to have an address: the box was told so and may still believe it, or the gateway
// finds it there itself.
func (p *Proxy) owns(ctx context.Context, box *policy.Box, n policy.Name, a netip.Addr) bool {
	if p.cfg.Resolver.Granted(box.ID, n, a) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, recheckLookup)
	defer cancel()
	found, _ := lookupAll(ctx, p.cfg.Resolver, box, []policy.Name{n})
	return slices.ContainsFunc(found, func(f netip.Addr) bool { return f.Unmap() == a.Unmap() })
}

// locate returns the first address of a name with which the policy allows a request, and which may be dialled for the name:
// the one that CONNECT gave, else that of the request. It is the zero Addr if there is none.
func (p *Proxy) locate(ctx context.Context, c *policy.Compiled, box *policy.Box, r policy.Request, name policy.Name) netip.Addr {
	if name.IsZero() {
		name = r.Name
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	addrs, err := p.cfg.Resolver.Lookup(ctx, box, name)
	if err != nil {
		return netip.Addr{}
	}
	dial := policy.Request{Stage: policy.StageDial, Box: box.ID, Name: name, Port: r.Port, Protocol: policy.TCP}
	for _, a := range interleave(addrs, false) {
		r.Addr, dial.Addr = a, a
		if !p.isOwn(a) && !p.isSink(a) && c.Decide(r).Allowed() && c.Decide(dial).Allowed() {
			return a
		}
	}
	return netip.Addr{}
}
