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

// Config is the configuration of [Run]. All fields are required except HostAddrs, HostPorts and DenyPage.
type Config struct {
	Box    policy.BoxID
	V4, V6 netip.Addr
	NetNS  string // path of the box's network namespace
	Policy *policy.Compiled

	GatewayV4, GatewayV6 netip.Addr
	SinkV4, SinkV6       netip.Addr
	ExplicitPort         uint16       // explicit proxy on the gateway's addresses
	HostAddrs            []netip.Addr // the host's addresses except loopback and the gateway's
	HostPorts            []Port       // ports on which the gateway serves clients other than boxes
	AnotherV4, AnotherV6 netip.Addr   // of another box, or unused addresses of the pool
	DenyPage             bool         // the gateway answers refused TLS connections with a page
	GuestStack           bool         // the box is known to have its own network stack

	// Events delivers the decisions about the box until ctx ends.
	Events func(ctx context.Context) <-chan audit.Event
	// Expect, if not nil, is called with the expected denials before the first packet is sent. It marks such denials
	// until end is called.
	Expect func([]audit.Expected) (end func())
	// Command starts this program so that it calls [Probe]. The user it runs as may be unable to read the program's
	// directory.
	Command []string

	// link is the box's interface on the host. mac is the address of its other end. Run sets both.
	link int
	mac  []byte
}

// Port is a port of the gateway that no box may reach.
type Port struct {
	Name string // such as "admin API"
	Port uint16
}

// findLink finds the interface that leads to the box's addresses.
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
