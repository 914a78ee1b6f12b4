package route

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Resolver resolves names for a box and remembers its answers. They are not trusted: every address is judged when it is
// dialled. Safe for concurrent use.
type Resolver interface {
	// Lookup returns the addresses of a name, both families, in no particular order. An error with a method NotFound
	// that returns true means that the name has none.
	Lookup(context.Context, *policy.Box, name.Name) ([]netip.Addr, error)
	// LookupBoth is Lookup, but waits for both families. On partial failure it returns what was found, with the error.
	LookupBoth(context.Context, *policy.Box, name.Name) ([]netip.Addr, error)
	// Granted reports whether the box was told that the name has this address, by an answer that is still valid.
	Granted(policy.BoxID, name.Name, netip.Addr) bool
	// Hold keeps that so until release is called, and for a moment after that, if it is so now: else it returns nil.
	Hold(policy.BoxID, name.Name, netip.Addr) (release func())
	// GrantedNames returns the names that the box was told have this address.
	GrantedNames(policy.BoxID, netip.Addr) []name.Name
}

// Router asks policies for routes. Create it with [New]. Safe for concurrent use.
type Router struct {
	resolver Resolver
	own      []netip.Addr  // of the gateway: never dialled
	sink     []netip.Addr  // handed out for names a box may not reach: never dialled
	timeout  time.Duration // for looking a name up
	base     context.Context

	mu     sync.Mutex
	caches map[policy.BoxID]*addrCaches
}

// New returns a router. own are addresses of the gateway itself and sink the addresses in DNS answers for names a box
// may not reach: neither is ever dialled. timeout bounds a lookup; base bounds everything that [Router.Reroute] waits
// for.
func New(base context.Context, resolver Resolver, own, sink []netip.Addr, timeout time.Duration) *Router {
	return &Router{resolver: resolver, own: own, sink: sink, timeout: timeout, base: base, caches: map[policy.BoxID]*addrCaches{}}
}

// IsOwn reports whether a is an address of the gateway.
func (g *Router) IsOwn(a netip.Addr) bool { return slices.Contains(g.own, a) }

// IsSink reports whether a is in DNS answers for names a box may not reach.
func (g *Router) IsSink(a netip.Addr) bool { return slices.Contains(g.sink, a) }

// Forget drops the state of a box.
func (g *Router) Forget(box policy.BoxID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.caches, box)
}

// Refresh makes the next use look up the addresses of the box's hosts with rules again.
func (g *Router) Refresh(box policy.BoxID) { g.cachesOf(g.base, box).expire() }

// cachesOf returns the addresses cached for a box. Nothing is cached for a connection that was cut: its box may have been
// forgotten already.
func (g *Router) cachesOf(ctx context.Context, box policy.BoxID) *addrCaches {
	g.mu.Lock()
	defer g.mu.Unlock()
	if known := g.caches[box]; known != nil {
		return known
	}
	caches := &addrCaches{}
	if ctx.Err() == nil {
		g.caches[box] = caches
	}
	return caches
}

// recheckLookup bounds lookups while a change of the policy waits for them.
const recheckLookup = 60 * time.Millisecond

// Routed is a route with the question it answers, which is asked again later. The zero value refuses.
type Routed struct {
	policy.Route
	Asked policy.Request
	Known policy.Evidence
}

// Route asks the policy for the route of a connection or request.
func (g *Router) Route(ctx context.Context, c *policy.Compiled, box *policy.Box, r policy.Request, e policy.Evidence) Routed {
	return g.gather(ctx, c, box, Routed{Asked: r, Known: e}, false)
}

// Now is [Router.Route] for a route that the policy knows without any further evidence: else it reports false.
func Now(c *policy.Compiled, r policy.Request, e policy.Evidence) (Routed, bool) {
	rt := Routed{Asked: r, Known: e}
	rt.Route = c.Route(r, e)
	rt.Known = rt.Settle(rt.Known)
	return rt, rt.Needs == policy.NeedNothing
}

// Reroute routes open traffic again under a policy, for which other hosts may have rules by now. A change of the policy
// waits for the result, so recent lookups suffice, and no unknown address is looked up.
func (g *Router) Reroute(c *policy.Compiled, box *policy.Box, was Routed) policy.Route {
	was.Known.Ruled, was.Known.NoAddr = policy.Unknown, true
	if rt := c.Route(was.Asked, was.Known); rt.Needs == policy.NeedNothing {
		return rt // the common case
	}
	ctx, cancel := context.WithTimeout(g.base, recheckLookup)
	defer cancel()
	return g.gather(ctx, c, box, was, true).Route
}

// gather asks the policy, and asks again with each piece of evidence that the route depends on. stale is as for
// [Router.ruled].
func (g *Router) gather(ctx context.Context, c *policy.Compiled, box *policy.Box, rt Routed, stale bool) Routed {
	for {
		rt.Route = c.Route(rt.Asked, rt.Known)
		switch rt.Needs {
		case policy.NeedAddr:
			rt.Asked.Addr, rt.Known.NoAddr = g.locate(ctx, c, box, rt.Request, rt.Known.Bound), true
		case policy.NeedRuled:
			rt.Known.Ruled = policy.AnswerOf(g.ruled(ctx, c, box, rt.leadsTo(), stale))
		case policy.NeedOwned:
			rt.Known.Owned = policy.AnswerOf(g.owns(ctx, box, rt.Request.Name, rt.Known.Dialled))
		default:
			rt.Known = rt.Settle(rt.Known)
			return rt
		}
	}
}

// leadsTo returns the address in question: the one dialled or, before that is known, the one asked for.
func (rt Routed) leadsTo() netip.AddrPort {
	if rt.Known.Dialled.IsValid() {
		return netip.AddrPortFrom(rt.Known.Dialled, rt.Asked.Port)
	}
	return netip.AddrPortFrom(rt.Asked.Addr, rt.Asked.Port)
}

// At returns the question for one address that is to be dialled.
func (rt Routed) At(a netip.Addr) (policy.Request, policy.Evidence) {
	owned := policy.Unknown
	if rt.ByName || a != rt.Asked.Addr.Unmap() && !rt.Request.Name.IsZero() {
		owned = policy.Yes // it was found by the name
	}
	e := rt.Held(rt.Known, a, owned)
	if a != rt.Asked.Addr.Unmap() {
		e.Ruled = policy.Unknown
	}
	return rt.Asked, e
}

// OverruledBy returns why traffic may not continue under a route found later, or nil.
func (rt Routed) OverruledBy(now policy.Route) *policy.DeniedError {
	if now.Keeps(rt.Action) {
		return nil
	}
	d := now.Decision
	if now.Action != policy.Refuse { // it would have to take another route
		d = policy.Decision{Reason: name.ReasonPolicyChanged, Version: d.Version}
	}
	d.Verdict = policy.Deny
	return &policy.DeniedError{Request: now.Request, Decision: d}
}

// ruled reports whether an address may belong to a host whose requests are judged or changed on the port: because every
// host is one, because the box was told so, or because the gateway finds it by a lookup. Hosts under a wildcard are
// known only by what the box was told. A name whose lookup fails may have any address, unless stale permits results of
// the last hour.
func (g *Router) ruled(ctx context.Context, c *policy.Compiled, box *policy.Box, to netip.AddrPort, stale bool) bool {
	if !to.Addr().IsValid() || c.RulesEveryHost(to.Port()) {
		return true
	}
	at := name.Untranslated(to.Addr())
	told := append(g.resolver.GrantedNames(box.ID, at), g.resolver.GrantedNames(box.ID, to.Addr())...)
	if slices.ContainsFunc(told, func(n name.Name) bool { return c.Intercepts(n, to.Port()) }) {
		return true
	}
	names := c.RuledNames(to.Port())
	return len(names) > 0 && g.cachesOf(ctx, box.ID).contains(ctx, g.resolver, box, names, at, stale)
}

// owns reports whether a name is known to have an address: the box was told so by an answer that is still valid, or the
// gateway finds it by a lookup.
func (g *Router) owns(ctx context.Context, box *policy.Box, n name.Name, a netip.Addr) bool {
	if g.resolver.Granted(box.ID, n, a) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, recheckLookup)
	defer cancel()
	found, _ := lookupAll(ctx, g.resolver, box, []name.Name{n})
	return slices.ContainsFunc(found, func(f netip.Addr) bool { return f.Unmap() == a.Unmap() })
}

// locate returns the first address of a name for which the policy allows the request and which may be dialled for the
// name: the one that CONNECT gave, else that of the request. It returns the zero Addr if there is none.
func (g *Router) locate(ctx context.Context, c *policy.Compiled, box *policy.Box, r policy.Request, name name.Name) netip.Addr {
	if name.IsZero() {
		name = r.Name
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	addrs, err := g.resolver.Lookup(ctx, box, name)
	if err != nil {
		return netip.Addr{}
	}
	dial := policy.Request{Stage: policy.StageDial, Box: box.ID, Name: name, Port: r.Port, Protocol: policy.TCP}
	for _, a := range Interleave(addrs, false) {
		r.Addr, dial.Addr = a, a
		if !g.IsOwn(a) && !g.IsSink(a) && c.Decide(r).Allowed() && c.Decide(dial).Allowed() {
			return a
		}
	}
	return netip.Addr{}
}

// Interleave orders addresses so that the families alternate, without duplicates and zones: if one family is
// unreachable, the second attempt tries the other (RFC 8305, 4).
func Interleave(addrs []netip.Addr, v6first bool) []netip.Addr {
	var v4, v6 []netip.Addr
	for _, a := range addrs {
		a = a.Unmap()
		switch {
		case a.Is4() && !slices.Contains(v4, a):
			v4 = append(v4, a)
		case a.Is6() && a.Zone() == "" && !slices.Contains(v6, a):
			v6 = append(v6, a)
		}
	}
	first, second := v4, v6
	if v6first {
		first, second = v6, v4
	}
	out := make([]netip.Addr, 0, len(v4)+len(v6))
	for i := range max(len(first), len(second)) {
		if i < len(first) {
			out = append(out, first[i])
		}
		if i < len(second) {
			out = append(out, second[i])
		}
	}
	return out
}

// Version returns the version of a policy, or 0 for nil.
func Version(c *policy.Compiled) uint64 {
	if c == nil {
		return 0
	}
	return c.Version()
}
