package selftest

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// UntestableError is returned when the box cannot be tested from its network namespace because its traffic does not
// come from the namespace's sockets. The box may be tight or not.
type UntestableError struct{ Reason string }

// Error returns the reason.
func (e *UntestableError) Error() string { return "the box cannot be tested from here: " + e.Reason }

// checkStack returns an error unless sockets in the namespace send as the box does. gVisor and virtual machines have
// their own network stack, and no interface of the namespace has their addresses. A probe would have a wrong or missing
// source address and be refused for the wrong reason.
func (c *Config) checkStack() error {
	if c.GuestStack {
		return &UntestableError{"it was attached with a network stack of its own (stack: guest), which the gateway cannot enter"}
	}
	ns, err := netns.GetFromPath(c.NetNS)
	if err != nil {
		return fmt.Errorf("the box's network namespace: %w", err)
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("the box's network namespace: %w", err)
	}
	defer inside.Close()
	list, err := inside.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("the addresses in the box's network namespace: %w", err)
	}
	have := map[netip.Addr]bool{}
	for _, a := range list {
		ip, _ := netip.AddrFromSlice(a.IP)
		have[ip.Unmap()] = true
	}
	for _, a := range []netip.Addr{c.V4, c.V6} {
		if !have[a] {
			return &UntestableError{fmt.Sprintf("no interface of its network namespace has the address %v: something there has "+
				"a network stack of its own, as gVisor and virtual machines have, or has taken the address away", a)}
		}
	}
	return nil
}
