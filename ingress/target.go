package ingress

import (
	"net/netip"

	"boxgate/policy"
)

// Target is what a public URL leads to.
type Target struct {
	ID  string // of the URL; never reused for another
	Box policy.BoxID
	// Owner is the ID of the API key that made the URL.
	Owner string
	Addr  netip.AddrPort // of the box's port
	Auth  Auth
	// Protocol is what the application speaks.
	Protocol Protocol
	// Access is what it has beyond its credentials; nil: nothing.
	Access *Access
}

// same reports whether two lookups found the same target.
func (t Target) same(o Target) bool {
	return t.ID == o.ID && t.Box == o.Box && t.Addr == o.Addr && t.Protocol == o.Protocol && t.Auth.same(o.Auth)
}

// incarnation is the key of the pool: connections are never shared between URLs, nor between two incarnations of one.
type incarnation struct {
	id   string
	box  policy.BoxID
	addr netip.AddrPort
}

func (t Target) incarnation() incarnation { return incarnation{t.ID, t.Box, t.Addr} }
