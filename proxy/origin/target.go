package origin

import (
	"net/netip"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/proxy/route"
)

// Target is the destination of a connection, with how to connect to it.
type Target struct {
	route.Routed
	name   policy.Name // the host; zero if not known
	secure bool        // over TLS, with a certificate for name

	identity *Identity // what the gateway authenticates by; nil: nothing
}

// To returns the target of a route. secure says that it speaks TLS.
func To(rt route.Routed, secure bool) Target {
	return Target{Routed: rt, name: rt.Request.Name, secure: secure}
}

// As returns the target for connections on which the gateway authenticates by a client certificate; nil: by none.
func (d Target) As(i *Identity) Target {
	d.identity = i
	return d
}

// key identifies the targets of a box that may share a connection: those of one host that are judged alike.
type key struct {
	name   policy.Name
	addr   netip.Addr // of a destination allowed by address; invalid where the name decided
	port   uint16
	secure bool

	identity string // of the client certificate; "": none
}

func (d Target) key() key {
	k := key{name: d.Asked.Name, port: d.Asked.Port, secure: d.secure, identity: d.identity.key()}
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
