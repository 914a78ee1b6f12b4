package origin

import (
	"net/netip"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/route"
)

// Target is the destination of a connection and the way to connect to it.
type Target struct {
	route.Routed
	name   name.Name // the host; zero if not known
	secure bool      // over TLS, with a certificate for name

	identity *Identity // authenticates the gateway; may be nil
	forward  bool      // it is a proxy of a forwarding rule, judged by the policy for proxies
	shown    name.Name // in errors
	literal  bool      // the box has given an address instead of a name
	legacy   bool      // old cipher suites are offered
	http1    bool      // HTTP/2 is not offered
}

// To returns the target of a route. secure is set for TLS.
func To(rt route.Routed, secure bool) Target {
	return Target{Routed: rt, name: rt.Request.Name, secure: secure, shown: rt.Request.Name}
}

// Literal returns the target for a box that has given an address instead of a name: other addresses of names with that
// address must not be used.
func (d Target) Literal() Target {
	d.literal = true
	return d
}

// Via returns, for requests to d, the target of a proxy that the policy for proxies ([policy.Compiled.Forwarding]) has a
// route to, over verified TLS. Errors mention d.
func (d Target) Via(rt route.Routed) Target {
	return Target{Routed: rt, name: rt.Request.Name, secure: true, forward: true, shown: d.shown}
}

// boxOf returns the box in whose name connections are made. For proxies it has the policy for proxies.
func (d Target) boxOf(box *policy.Box) *policy.Box {
	if !d.forward {
		return box
	}
	own := &policy.Box{ID: box.ID}
	own.Policy.Store(box.Policy.Load().Forwarding())
	return own
}

// As returns the target for connections on which the gateway authenticates with a client certificate; nil: without one.
func (d Target) As(i *Identity) Target {
	d.identity = i
	return d
}

// Legacy returns the target for connections on which the server is also offered old cipher suites.
func (d Target) Legacy() Target {
	d.legacy = true
	return d
}

// OnlyHTTP1 returns the target for connections on which the server is not offered HTTP/2.
func (d Target) OnlyHTTP1() Target {
	d.http1 = true
	return d
}

// key identifies the targets of a box that may share a connection: one host, judged alike.
type key struct {
	name   name.Name
	addr   netip.Addr // of a destination allowed by address; invalid where the name decided
	port   uint16
	secure bool

	identity string // of the client certificate; "": no certificate
	forward  bool
	by       string // the key of the upstream proxy; "": no proxy
	from     policy.Source
	legacy   bool
	http1    bool
}

// decider returns the part of a box's policy that decides about connections of the key.
func (k key) decider(c *policy.Compiled) *policy.Compiled {
	if k.forward {
		return c.Forwarding()
	}
	return c
}

// shown returns the name for errors, or the zero name for a proxy, which the box does not know.
func (k key) shown() name.Name {
	if k.forward {
		return name.Name{}
	}
	return k.name
}

func (d Target) key() key {
	k := key{name: d.Asked.Name, port: d.Asked.Port, secure: d.secure, identity: d.identity.key(), forward: d.forward, by: d.Upstream.Key()}
	k.from, k.legacy, k.http1 = d.From, d.legacy, d.http1
	if !d.ByName {
		k.addr = d.Asked.Addr
	}
	return k
}

// Client identifies the client of a connection to a server.
type Client struct {
	Box    *policy.Box
	Memory *memory.Account            // of the box
	Denied func() *policy.DeniedError // returns the reason why the box may not have more connections, or nil
}
