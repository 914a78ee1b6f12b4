package origin

import (
	"net/netip"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/route"
)

// Target is the destination of a connection, with how to connect to it.
type Target struct {
	route.Routed
	name   name.Name // the host; zero if not known
	secure bool      // over TLS, with a certificate for name

	identity *Identity // what the gateway authenticates by; nil: nothing
	forward  bool      // it is a proxy that a rule forwards to: the policy for those decides
	shown    name.Name // in errors
	literal  bool      // the box has given the address instead of a name
}

// To returns the target of a route. secure says that it speaks TLS.
func To(rt route.Routed, secure bool) Target {
	return Target{Routed: rt, name: rt.Request.Name, secure: secure, shown: rt.Request.Name}
}

// Literal returns the target for a box that has given the address instead of a name: whatever names have it, their other
// addresses were not asked for.
func (d Target) Literal() Target {
	d.literal = true
	return d
}

// Via returns, for requests to d, the target of a proxy that the policy for those ([policy.Compiled.Forwarding]) has a route
// to, over verified TLS. Errors are about d.
func (d Target) Via(rt route.Routed) Target {
	return Target{Routed: rt, name: rt.Request.Name, secure: true, forward: true, shown: d.shown}
}

// boxOf returns the box that connections are made as: where the policy for proxies decides, one that has that.
func (d Target) boxOf(box *policy.Box) *policy.Box {
	if !d.forward {
		return box
	}
	own := &policy.Box{ID: box.ID}
	own.Policy.Store(box.Policy.Load().Forwarding())
	return own
}

// As returns the target for connections on which the gateway authenticates by a client certificate; nil: by none.
func (d Target) As(i *Identity) Target {
	d.identity = i
	return d
}

// key identifies the targets of a box that may share a connection: those of one host that are judged alike.
type key struct {
	name   name.Name
	addr   netip.Addr // of a destination allowed by address; invalid where the name decided
	port   uint16
	secure bool

	identity string // of the client certificate; "": none
	forward  bool
	by       string // the key of the upstream proxy; "": none
	from     policy.Source
}

// decider returns what decides about connections of the key, of a box's policy.
func (k key) decider(c *policy.Compiled) *policy.Compiled {
	if k.forward {
		return c.Forwarding()
	}
	return c
}

// shown is the name in errors; the zero name for a proxy, of which the box knows nothing.
func (k key) shown() name.Name {
	if k.forward {
		return name.Name{}
	}
	return k.name
}

func (d Target) key() key {
	k := key{name: d.Asked.Name, port: d.Asked.Port, secure: d.secure, identity: d.identity.key(), forward: d.forward, by: d.Upstream.Key()}
	k.from = d.From
	if !d.ByName {
		k.addr = d.Asked.Addr
	}
	return k
}

// Client is the client that a connection is made for.
type Client struct {
	Box    *policy.Box
	Memory *memory.Account            // of the box
	Denied func() *policy.DeniedError // returns why the box may have no more connections, or nil
}
