package policy

import (
	"net/netip"

	"boxgate/policy/name"
)

// Box is what the data path knows about a sandbox. Its addresses identify it: the kernel has checked the source address
// and the interface before any other part of the gateway sees a packet. ID and addresses never change.
type Box struct {
	ID     BoxID
	V4, V6 netip.Addr  // the box's own addresses
	Search []name.Name // the search list of its resolver, if that is known; it never changes
	Policy Live
	Limits LiveLimits
}
