package route

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

// Resolver resolves names for a box and remembers what the box was told. Its answers are not trusted: every address is
// judged when it is dialled. Safe for concurrent use.
type Resolver interface {
	// Lookup returns the addresses of a name, of both families, in no particular order. An error whose method NotFound
	// reports true says that the name has none.
	Lookup(context.Context, *policy.Box, policy.Name) ([]netip.Addr, error)
	// LookupBoth is Lookup, but waits for both families. What it found of one comes with the error that the other's lack is.
	LookupBoth(context.Context, *policy.Box, policy.Name) ([]netip.Addr, error)
	// Granted reports whether the box was told, and may still believe, that the name has this address.
	Granted(policy.BoxID, policy.Name, netip.Addr) bool
	// GrantedNames returns the names of which the box was told that they have this address.
	GrantedNames(policy.BoxID, netip.Addr) []policy.Name
}

// Router asks policies for routes. Only newRouter makes one. Safe for concurrent use.
type Router struct {
	resolver Resolver
	own      []netip.Addr  // of the gateway: never dialled
	sink     []netip.Addr  // handed out for names a box may not reach: never dialled
	timeout  time.Duration // for looking a name up
	base     context.Context

	mu     sync.Mutex
	caches map[policy.BoxID]*addrCaches
}

// New returns a router. own are addresses of the gateway itself and sink those that DNS hands out for names a box may not
// reach: neither is ever dialled. timeout bounds a lookup, base everything that [Router.Reroute] waits for.
func New(base context.Context, resolver Resolver, own, sink []netip.Addr, timeout time.Duration) *Router {
	return &Router{resolver: resolver, own: own, sink: sink, timeout: timeout, base: base, caches: map[policy.BoxID]*addrCaches{}}
}

// IsOwn reports whether a is the gateway's own.
func (g *Router) IsOwn(a netip.Addr) bool { return slices.Contains(g.own, a) }

// IsSink reports whether a is the address handed out for names a box may not reach.
func (g *Router) IsSink(a netip.Addr) bool { return slices.Contains(g.sink, a) }

// Forget drops what is remembered for a box.
func (g *Router) Forget(box policy.BoxID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.caches, box)
}

// Refresh has the addresses of the box's hosts with rules looked up anew when they are needed next.
func (g *Router) Refresh(box policy.BoxID) { g.cachesOf(box).expire() }

func (g *Router) cachesOf(box policy.BoxID) *addrCaches {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.caches[box] == nil {
		g.caches[box] = &addrCaches{}
	}
	return g.caches[box]
}

// recheckLookup bounds what is looked up while a change of the policy waits for it.
const recheckLookup = 60 * time.Millisecond

// Routed is how a connection or a request passes, with the question: it is asked again later. The zero value refuses.
type Routed struct {
	policy.Route
	Asked policy.Request
	Known policy.Evidence
}

// Route asks the policy how something may pass.
func (g *Router) Route(ctx context.Context, c *policy.Compiled, box *policy.Box, r policy.Request, e policy.Evidence) Routed {
	return g.gather(ctx, c, box, Routed{Asked: r, Known: e}, false)
}

// Reroute asks a policy about what passes already, for which other hosts may have rules by now. A change of the policy
// waits for the answer: what was found lately will do, and no address is looked for that was not known.
func (g *Router) Reroute(c *policy.Compiled, box *policy.Box, was Routed) policy.Route {
	was.Known.Ruled, was.Known.NoAddr = policy.Unknown, true
	if rt := c.Route(was.Asked, was.Known); rt.Needs == policy.NeedNothing {
		return rt // most often
	}
	ctx, cancel := context.WithTimeout(g.base, recheckLookup)
	defer cancel()
	return g.gather(ctx, c, box, was, true).Route
}

// gather asks the policy, and again with each piece of evidence that the answer turns on. stale is that of [Router.ruled].
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
			return rt
		}
	}
}

// leadsTo is the address in question: the one that is dialled, or before that is known the one that was asked for.
func (rt Routed) leadsTo() netip.AddrPort {
	if rt.Known.Dialled.IsValid() {
		return netip.AddrPortFrom(rt.Known.Dialled, rt.Asked.Port)
	}
	return netip.AddrPortFrom(rt.Asked.Addr, rt.Asked.Port)
}

// At returns the question about one address that is to be dialled for what is routed.
func (rt Routed) At(a netip.Addr) (policy.Request, policy.Evidence) {
	owned := policy.Unknown
	if rt.ByName {
		owned = policy.Yes // that is how it was found
	}
	e := rt.Held(rt.Known, a, owned)
	if a != rt.Asked.Addr.Unmap() {
		e.Ruled = policy.Unknown
	}
	return rt.Asked, e
}

// OverruledBy returns why what passes may not go on under a route that was found later, or nil.
func (rt Routed) OverruledBy(now policy.Route) *policy.DeniedError {
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
func (g *Router) ruled(ctx context.Context, c *policy.Compiled, box *policy.Box, to netip.AddrPort, stale bool) bool {
	if !to.Addr().IsValid() || c.RulesEveryHost(to.Port()) {
		return true
	}
	at := policy.Untranslated(to.Addr())
	told := append(g.resolver.GrantedNames(box.ID, at), g.resolver.GrantedNames(box.ID, to.Addr())...)
	if slices.ContainsFunc(told, func(n policy.Name) bool { return c.Intercepts(n, to.Port()) }) {
		return true
	}
	names := c.RuledNames(to.Port())
	return len(names) > 0 && g.cachesOf(box.ID).contains(ctx, g.resolver, box, names, at, stale)
}

// owns reports whether a name is known to have an address: the box was told so and may still believe it, or the gateway
// finds it there itself.
func (g *Router) owns(ctx context.Context, box *policy.Box, n policy.Name, a netip.Addr) bool {
	if g.resolver.Granted(box.ID, n, a) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, recheckLookup)
	defer cancel()
	found, _ := lookupAll(ctx, g.resolver, box, []policy.Name{n})
	return slices.ContainsFunc(found, func(f netip.Addr) bool { return f.Unmap() == a.Unmap() })
}

// locate returns the first address of a name with which the policy allows a request, and which may be dialled for the name:
// the one that CONNECT gave, else that of the request. It is the zero Addr if there is none.
func (g *Router) locate(ctx context.Context, c *policy.Compiled, box *policy.Box, r policy.Request, name policy.Name) netip.Addr {
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

// Interleave orders addresses so that the families alternate, without doubles and zones: when one family leads nowhere,
// the second attempt tries the other (RFC 8305, 4).
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

// Version returns the version of a policy; 0 if there is none.
func Version(c *policy.Compiled) uint64 {
	if c == nil {
		return 0
	}
	return c.Version()
}
