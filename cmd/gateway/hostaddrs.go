package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"go.uber.org/zap"

	"boxgate/policy"
)

// reprotect takes the host's present addresses into the protected ranges, and puts every box's policy in force anew if
// they have changed.
func (h *host) reprotect(ctx context.Context) error {
	own, err := hostPrefixes()
	if err != nil {
		return fmt.Errorf("reading the host's addresses: %w", err)
	}
	own = append(own, h.addrs.poolV4, h.addrs.poolV6)
	slices.SortFunc(own, comparePrefixes)
	own = slices.Compact(own)
	h.mu.Lock()
	same := slices.Equal(own, h.own)
	h.own = own
	h.mu.Unlock()
	if same {
		return nil
	}
	h.protected.Store(policy.NewProtected(h.addrs.exempt, own))
	return h.recompile(ctx)
}

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
func (h *host) followAddresses(ctx context.Context) error {
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
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("the kernel's address events ended: %w", err)
		case _, ok := <-updates:
			if ctx.Err() == nil && !ok {
				return errors.New("the kernel's address events ended")
			}
			if !ok {
				return nil
			}
			if err := h.reprotect(ctx); err != nil {
				h.log.Error("new host addresses are not protected everywhere", zap.Error(err))
			}
		}
	}
}
