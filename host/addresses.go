package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/zap"

	"boxgate/policy"
)

// reprotect takes the host's present addresses into the protected ranges, and puts every box's policy in force anew if
// they have changed.
func (h *Host) reprotect(ctx context.Context) error {
	own, err := hostPrefixes()
	if err != nil {
		return fmt.Errorf("reading the host's addresses: %w", err)
	}
	own = append(own, h.addrs.PoolV4, h.addrs.PoolV6)
	slices.SortFunc(own, comparePrefixes)
	own = slices.Compact(own)
	if slices.Equal(own, h.own) {
		return nil
	}
	h.protected.Store(policy.NewProtected(h.addrs.Exempt, own))
	if err := h.recompile(ctx); err != nil {
		return err // h.own is not changed: the next call tries again
	}
	h.own = own
	return nil
}

// addressRetry is how often it is tried to protect new addresses when it did not work everywhere.
const addressRetry = time.Second

// hostPrefixes returns every address of the host as a host route.
func hostPrefixes() ([]netip.Prefix, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	var own []netip.Prefix
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			addr = addr.Unmap()
			own = append(own, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	return own, nil
}

func comparePrefixes(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

// followAddresses keeps the protected ranges up to date until ctx ends.
func (h *Host) followAddresses(ctx context.Context) error {
	updates := make(chan netlink.AddrUpdate, 64)
	failed := make(chan error, 1)
	err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{
		ErrorCallback: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	// The first look comes after the subscription, so that no address is missed in between.
	retry := time.After(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
			retry = h.tryReprotect(ctx)
		case err := <-failed:
			return fmt.Errorf("the kernel's address events ended: %w", err)
		case _, ok := <-updates:
			if ctx.Err() == nil && !ok {
				return errors.New("the kernel's address events ended")
			}
			if !ok {
				return nil
			}
			retry = h.tryReprotect(ctx)
		}
	}
}

// tryReprotect is reprotect for [Host.followAddresses]: a failure is logged and tried again when the returned channel
// delivers; nil, which never does, means that all is well.
func (h *Host) tryReprotect(ctx context.Context) <-chan time.Time {
	err := h.reprotect(ctx)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	h.log.Error("new host addresses are not protected everywhere; trying again", zap.Error(err))
	return time.After(addressRetry)
}
