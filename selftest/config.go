package selftest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"boxgate/audit"
	"boxgate/policy"
)

// Config is what [Run] needs to know about the box and the host. All fields are required except HostAddrs, HostPorts
// and DenyPage.
type Config struct {
	Box    policy.BoxID
	V4, V6 netip.Addr
	NetNS  string // path of the box's network namespace
	Policy *policy.Compiled

	GatewayV4, GatewayV6 netip.Addr
	SinkV4, SinkV6       netip.Addr
	ExplicitPort         uint16       // of the explicit proxy on the gateway's addresses
	HostAddrs            []netip.Addr // of the host, not loopback and not the gateway's own
	HostPorts            []Port       // on which the gateway serves others than boxes
	AnotherV4, AnotherV6 netip.Addr   // another box's, or of the pool and nobody's
	DenyPage             bool         // refusals over TLS come as a page
	GuestStack           bool         // the box is known to have a network stack of its own

	// Events delivers the decisions about the box from now on until ctx ends.
	Events func(ctx context.Context) <-chan audit.Event
	// Expect, if not nil, is called with the expected denials before anything is sent, and marks them until end is
	// called.
	Expect func([]audit.Expected) (end func())
	// Command is how this program is started to call [Probe], as somebody who may not read its directory.
	Command []string

	// link is the box's interface on the host, and mac the address of its other end. Run finds them.
	link int
	mac  []byte
}

// Port is a port of the gateway that no box may reach.
type Port struct {
	Name string // such as "admin API"
	Port uint16
}

// findLink finds the interface behind which the box's addresses are.
func (c *Config) findLink() error {
	routes, err := netlink.RouteGet(c.V4.AsSlice())
	if err != nil {
		return fmt.Errorf("the host has no route to the box: %w", err)
	}
	if len(routes) == 0 {
		return errors.New("the host has no route to the box")
	}
	c.link = routes[0].LinkIndex
	neighbours, err := netlink.NeighList(c.link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("the host's neighbours: %w", err)
	}
	for _, n := range neighbours {
		if a, _ := netip.AddrFromSlice(n.IP); a.Unmap() == c.V4 {
			c.mac = n.HardwareAddr
		}
	}
	if len(c.mac) != 6 {
		return errors.New("the box is no neighbour of the host")
	}
	return nil
}
