package firewall

import (
	"errors"
	"net/netip"

	"boxgate/policy"
)

var errUnknownBox = errors.New("unknown box")

// Flow is one connection that the kernel forwards for a box, as the box sees it.
type Flow struct {
	Protocol policy.Protocol
	Src, Dst netip.AddrPort // ports are 0 for ICMP
}
