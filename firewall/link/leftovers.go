package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
)

// Leftovers returns the host-side interfaces of all boxes, no matter which gateway made them.
func Leftovers(h *netlink.Handle) ([]string, error) {
	links, err := namespace.Whole(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	var names []string
	for _, l := range links {
		if network.IsLinkGroup(l.Attrs().Group) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

// DeleteLeftovers deletes them, and with them the boxes' ends and everything attached to both.
func DeleteLeftovers(h *netlink.Handle) error {
	names, err := Leftovers(h)
	if err != nil {
		return err
	}
	l := Links{nl: h}
	var errs []error
	for _, name := range names {
		errs = append(errs, l.Delete(name))
	}
	return errors.Join(errs...)
}
