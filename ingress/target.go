package ingress

import (
	"net/netip"

	"boxgate/policy"
)

// Target is the destination of a public URL.
type Target struct {
	ID  string // of the URL; never reused for another one
	Box policy.BoxID
	// Owner is the ID of the API key that made the URL.
	Owner string
	Addr  netip.AddrPort // of the box's port
	Auth  Auth
	// Protocol is the application's.
	Protocol Protocol
	// Access contains further settings; nil: none are set.
	Access *Access
}

// same reports whether two lookups found the same target.
func (t Target) same(o Target) bool {
	return t.ID == o.ID && t.Box == o.Box && t.Addr == o.Addr && t.Protocol == o.Protocol && t.Auth.same(o.Auth)
}

// incarnation is the key of a connection pool: neither two URLs nor two incarnations of one share connections.
type incarnation struct {
	id   string
	box  policy.BoxID
	addr netip.AddrPort
}

func (t Target) incarnation() incarnation { return incarnation{t.ID, t.Box, t.Addr} }
