// Package apart makes the network namespace in which the boxes of a gateway have their links and rules when they are not to
// be in the host's own. The gateway keeps that namespace open and dials from the host's: nothing leads out of it but the
// sockets that the gateway listens on there. It is gone with the process.
package apart

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"boxgate/firewall/namespace"
)

// Net is such a namespace. Safe for concurrent use.
type Net struct{ ns netns.NsHandle }

// New makes a namespace with nothing but a loopback interface.
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

// Do runs f on a thread that is in the namespace. Sockets that f opens stay in it; what f starts in other goroutines is not. A nil Net
// stands for the host's own namespace.
func (n *Net) Do(f func() error) error {
	if n == nil {
		return f()
	}
	return namespace.Do(n.ns, f)
}

// Close lets go of the namespace. The kernel removes it with the last socket and process in it.
func (n *Net) Close() error { return n.ns.Close() }
