package firewall

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/namespace"
)

// ErrAddressesChanging is returned by [HostAddresses] together with an incomplete list.
var ErrAddressesChanging = errors.New("the addresses change faster than they can be listed")

// HostAddresses returns every address of the network namespace of the calling thread. If they keep changing, it returns the
// addresses seen so far and [ErrAddressesChanging]: some may be missing, and others gone.
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
		return slices.Compact(seen), ErrAddressesChanging
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

// HostAddressChanges returns a channel that receives when the addresses may have changed since the last receive. It is
// closed when ctx ends, and when changes may have been missed: the caller must then subscribe again.
func HostAddressChanges(ctx context.Context) (<-chan struct{}, error) {
	ctx, cancel := context.WithCancel(ctx)
	updates := make(chan netlink.AddrUpdate, 64)
	err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: func(error) { cancel() }})
	if err != nil {
		cancel()
		return nil, err
	}
	changed := make(chan struct{}, 1)
	go func() { // the kernel drops messages that are not read soon
		defer close(changed)
		defer cancel()
		for range updates {
			select {
			case changed <- struct{}{}:
			default: // the pending element covers this change, too
			}
		}
	}()
	return changed, nil
}
