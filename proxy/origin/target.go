package origin

import (
	"net/netip"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/proxy/route"
)

// Target says where a connection is to lead, and how.
type Target struct {
	route.Routed
	name   policy.Name // what the connection is for; zero if that is not known
	secure bool        // TLS is spoken, and the server must prove to be name
}

// To returns where what is routed leads. secure says that it speaks TLS.
func To(rt route.Routed, secure bool) Target { return Target{rt, rt.Request.Name, secure} }

// key says which targets of a box may share a connection: those of one host, judged in the same way.
type key struct {
	name   policy.Name
	addr   netip.Addr // of a destination that was allowed by its address; invalid where the name decided
	port   uint16
	secure bool
}

func (d Target) key() key {
	k := key{name: d.Asked.Name, port: d.Asked.Port, secure: d.secure}
	if !d.ByName {
		k.addr = d.Asked.Addr
	}
	return k
}

// Client is whom a connection is for.
type Client struct {
	Box    *policy.Box
	Memory *memory.Account            // of the box
	Denied func() *policy.DeniedError // why the box may have no connection any more; nil while it may
}
