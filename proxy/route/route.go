// Package route asks the policy for the routes of connections and requests, and gathers the evidence that takes time: the
// addresses of hosts with rules, and the hosts of an address.
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
	// Lookup returns the addresses of a name, in both families and in no particular order. An error with a method NotFound
	// that returns true means that the name has no addresses.
	Lookup(context.Context, *policy.Box, name.Name) ([]netip.Addr, error)
	// LookupBoth is Lookup, but waits for both families. On partial failure it returns the results so far, with the error.
	LookupBoth(context.Context, *policy.Box, name.Name) ([]netip.Addr, error)
	// Granted reports whether the box has received this address of the name in a DNS answer that is still valid.
	Granted(policy.BoxID, name.Name, netip.Addr) bool
	// RetainGrant extends a grant until release is called, and for a moment after that. It returns nil if there is no grant.
	RetainGrant(policy.BoxID, name.Name, netip.Addr) (release func())
	// GrantedNames returns the names that the box has received this address for.
	GrantedNames(policy.BoxID, netip.Addr) []name.Name
}

// Router asks policies for routes. Create it with [New]. Safe for concurrent use.
type Router struct {
	resolver Resolver
	own      []netip.Addr  // addresses of the gateway: never dialled
	sink     []netip.Addr  // addresses in DNS answers for denied names: never dialled
	timeout  time.Duration // for looking a name up
	base     context.Context

	mu     sync.Mutex
	caches map[policy.BoxID]*addrCaches
}

// New returns a router. own are addresses of the gateway itself and sink the addresses in DNS answers for denied names:
// neither is ever dialled. timeout limits a lookup; base is the parent context of [Router.Reroute].
func New(base context.Context, resolver Resolver, own, sink []netip.Addr, timeout time.Duration) *Router {
	return &Router{resolver: resolver, own: own, sink: sink, timeout: timeout, base: base, caches: map[policy.BoxID]*addrCaches{}}
}

// IsOwn reports whether a is an address of the gateway.
func (g *Router) IsOwn(a netip.Addr) bool { return slices.Contains(g.own, a) }

// IsSink reports whether a is an address in DNS answers for denied names.
func (g *Router) IsSink(a netip.Addr) bool { return slices.Contains(g.sink, a) }

// Forget drops the state of a box.
func (g *Router) Forget(box policy.BoxID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.caches, box)
}

// Refresh makes the next use look up the addresses of the box's hosts with rules again.
func (g *Router) Refresh(box policy.BoxID) { g.cachesOf(g.base, box).expire() }

// cachesOf returns the cached addresses for a box. If ctx has ended, the result is not stored: the box of a cut connection
// may already have been forgotten.
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

// recheckLookup limits lookups that delay a change of the policy.
const recheckLookup = 60 * time.Millisecond

// Routed is a route with its request and evidence, kept to evaluate it again later. The zero value refuses.
type Routed struct {
	policy.Route
	Asked policy.Request
	Known policy.Evidence
}

// Route asks the policy for the route of a connection or request.
func (g *Router) Route(ctx context.Context, c *policy.Compiled, box *policy.Box, r policy.Request, e policy.Evidence) Routed {
	rt := Routed{Asked: r, Known: e}
	g.Update(ctx, c, box, &rt)
	return rt
}

// Update asks the policy for the route of rt.Asked with the evidence rt.Known, gathers further evidence that the route
// depends on, and sets rt.Route. It works in place, as requests are many and a Routed is large.
func (g *Router) Update(ctx context.Context, c *policy.Compiled, box *policy.Box, rt *Routed) {
	g.gather(ctx, c, box, rt, false)
}

// UpdateNow is [Router.Update] without gathering evidence. It returns false if the route depends on more.
func (rt *Routed) UpdateNow(c *policy.Compiled) bool {
	rt.Route = c.Route(rt.Asked, rt.Known)
	rt.Settle(&rt.Known)
	return rt.Needs == policy.NeedNothing
}

// Reroute routes open traffic again under a policy with possibly other hosts in its rules. A change of the policy waits for
// the result, so recent lookups suffice, and unknown addresses are not looked up.
func (g *Router) Reroute(c *policy.Compiled, box *policy.Box, was Routed) policy.Route {
	if rt, ok := g.RerouteNow(c, was); ok {
		return rt // the common case
	}
	was.Known.Ruled, was.Known.NoAddr = policy.Unknown, true
	ctx, cancel := context.WithTimeout(g.base, recheckLookup)
	defer cancel()
	g.gather(ctx, c, box, &was, true)
	return was.Route
}

// RerouteNow is [Router.Reroute] without waiting. It reports false if the route depends on more evidence, which may take a lookup.
func (*Router) RerouteNow(c *policy.Compiled, was Routed) (rt policy.Route, ok bool) {
	was.Known.Ruled, was.Known.NoAddr = policy.Unknown, true
	rt = c.Route(was.Asked, was.Known)
	return rt, rt.Needs == policy.NeedNothing
}

// gather evaluates the policy, again after each piece of evidence that the route depends on. stale is as for
// [Router.mayBeRuled].
func (g *Router) gather(ctx context.Context, c *policy.Compiled, box *policy.Box, rt *Routed, stale bool) {
	for {
		rt.Route = c.Route(rt.Asked, rt.Known)
		switch rt.Needs {
		case policy.NeedAddr:
			rt.Asked.Addr, rt.Known.NoAddr = g.resolveAllowed(ctx, c, box, rt.Request, rt.Known.Bound), true
		case policy.NeedRuled:
			rt.Known.Ruled = policy.TristateOf(g.mayBeRuled(ctx, c, box, rt.destination(), stale))
		case policy.NeedOwned:
			rt.Known.Owned = policy.TristateOf(g.nameHasAddr(ctx, box, rt.Request.Name, rt.Known.Dialled))
		default:
			rt.Settle(&rt.Known)
			return
		}
	}
}

// destination returns the address in question: the one dialled or, before that is known, the requested one.
func (rt *Routed) destination() netip.AddrPort {
	if rt.Known.Dialled.IsValid() {
		return netip.AddrPortFrom(rt.Known.Dialled, rt.Asked.Port)
	}
	return netip.AddrPortFrom(rt.Asked.Addr, rt.Asked.Port)
}

// Bind completes the request and the evidence for one address before it is dialled.
func (rt *Routed) Bind(a netip.Addr) {
	owned := policy.Unknown
	if rt.ByName || a != rt.Asked.Addr.Unmap() && !rt.Request.Name.IsZero() {
		owned = policy.Yes // the address was found by resolving the name
	}
	rt.Hold(&rt.Known, a, owned)
	if a != rt.Asked.Addr.Unmap() {
		rt.Known.Ruled = policy.Unknown
	}
}

// OverruledBy returns the denial for traffic whose route has changed to now, or nil if it may continue.
func (rt *Routed) OverruledBy(now policy.Route) *policy.DeniedError {
	if now.Keeps(rt.Action) {
		return nil
	}
	d := now.Decision
	if now.Action != policy.Refuse { // allowed only by another route
		d = policy.Decision{Reason: name.ReasonPolicyChanged, Version: d.Version}
	}
	d.Verdict = policy.Deny
	return &policy.DeniedError{Request: now.Request, Decision: d}
}

// mayBeRuled reports whether an address may belong to a host whose requests are judged or changed on the port: because the
// policy has such a rule for every host, because the box has received the address for such a host in a DNS answer, or
// because a lookup by the gateway returns it. Hosts under a wildcard are known only from the box's DNS answers. A name
// whose lookup fails may have any address, unless stale permits results of the last hour.
func (g *Router) mayBeRuled(ctx context.Context, c *policy.Compiled, box *policy.Box, to netip.AddrPort, stale bool) bool {
	if !to.Addr().IsValid() || c.RulesEveryHost(to.Port()) {
		return true
	}
	at := name.Untranslated(to.Addr())
	granted := append(g.resolver.GrantedNames(box.ID, at), g.resolver.GrantedNames(box.ID, to.Addr())...)
	if slices.ContainsFunc(granted, func(n name.Name) bool { return c.Intercepts(n, to.Port()) }) {
		return true
	}
	names := c.RuledNames(to.Port())
	return len(names) > 0 && g.cachesOf(ctx, box.ID).contains(ctx, g.resolver, box, names, at, stale)
}

// nameHasAddr reports whether a name is known to have an address: by a valid DNS answer to the box, or by a lookup of the gateway.
func (g *Router) nameHasAddr(ctx context.Context, box *policy.Box, n name.Name, a netip.Addr) bool {
	if g.resolver.Granted(box.ID, n, a) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, recheckLookup)
	defer cancel()
	found, _ := lookupAll(ctx, g.resolver, box, []name.Name{n})
	return slices.ContainsFunc(found, func(f netip.Addr) bool { return f.Unmap() == a.Unmap() })
}

// resolveAllowed returns the first address of a name for which the policy allows the request and the dial. The name is the one in
// CONNECT, otherwise that of the request. It returns the zero Addr if there is no such address.
func (g *Router) resolveAllowed(ctx context.Context, c *policy.Compiled, box *policy.Box, r policy.Request, name name.Name) netip.Addr {
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
