package firewall

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/namespace"
)

// ErrAddressesChange is what [HostAddresses] returns with what it has seen.
var ErrAddressesChange = errors.New("they change faster than they can be listed")

// HostAddresses returns every address of the network namespace of the calling thread. If they change all the while, it returns
// those that it has seen, and [ErrAddressesChange]: some may be missing, and others gone.
func HostAddresses() ([]netip.Addr, error) {
	var seen []netip.Addr
	list, err := namespace.Whole(func() ([]netlink.Addr, error) {
		list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		seen = append(seen, addressesIn(list)...)
		return list, err
	})
	switch {
	case errors.Is(err, netlink.ErrDumpInterrupted):
		slices.SortFunc(seen, netip.Addr.Compare)
		return slices.Compact(seen), ErrAddressesChange
	case err != nil:
		return nil, err
	}
	return addressesIn(list), nil
}

func addressesIn(list []netlink.Addr) (own []netip.Addr) {
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			own = append(own, addr.Unmap())
		}
	}
	return own
}

// HostAddressChanges returns a channel that has an element when the addresses may have changed since the last one was taken. It is
// closed when ctx ends, and when changes may have been missed: then they are followed anew.
func HostAddressChanges(ctx context.Context) (<-chan struct{}, error) {
	ctx, cancel := context.WithCancel(ctx)
	updates := make(chan netlink.AddrUpdate, 64)
	err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: func(error) { cancel() }})
	if err != nil {
		cancel()
		return nil, err
	}
	changed := make(chan struct{}, 1)
	go func() { // the kernel drops what is not read soon
		defer close(changed)
		defer cancel()
		for range updates {
			select {
			case changed <- struct{}{}:
			default: // whoever takes the one that is there sees this change, too
			}
		}
	}()
	return changed, nil
}
