// Package netns makes a separate network namespace for the links and rules of a gateway's boxes, for gateways that must
// not use the host's. The gateway keeps the namespace open and dials from the host's. The only way out of the namespace
// is the gateway's listening sockets in it. It disappears with the process.
package netns

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"boxgate/firewall/namespace"
)

// Net is such a namespace. Safe for concurrent use.
type Net struct{ ns netns.NsHandle }

// New makes a namespace with only a loopback interface.
func New() (*Net, error) {
	ns, err := namespace.New()
	if err != nil {
		return nil, fmt.Errorf("making a network namespace (which needs root): %w", err)
	}
	n := &Net{ns}
	if err := n.raiseLoopback(); err != nil {
		_ = n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Net) raiseLoopback() error {
	h, err := netlink.NewHandleAt(n.ns)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("loopback interface: %w", err)
	}
	return nil
}

// Do runs f on a thread in the namespace. Sockets that f opens belong to it; goroutines that f starts do not run in it. A
// nil Net stands for the host's own namespace.
func (n *Net) Do(f func() error) error {
	if n == nil {
		return f()
	}
	return namespace.Do(n.ns, f)
}

// Close closes the namespace. The kernel removes it with its last socket and process.
func (n *Net) Close() error { return n.ns.Close() }
