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

	"boxgate/config"
	"boxgate/policy"
)

// protection keeps the addresses of the host and the pools of the boxes protected in every box.
type protection struct {
	log      *zap.Logger
	addrs    config.Addresses
	policies *policies

	own []netip.Prefix // protected in every box; nil while that is not known; used by update alone, and by nobody else while that may run
}

// update protects the present addresses of the host, if they have changed.
//
// There is nothing to stage, as the next start reads the addresses anew, and nothing to roll back to: the host has these
// addresses, and a box that was kept from them must not get them back because another could not be. A failed update is
// tried again.
func (p *protection) update(ctx context.Context) error {
	own, err := hostPrefixes()
	if err != nil {
		return fmt.Errorf("reading the host's addresses: %w", err)
	}
	own = append(own, p.addrs.PoolV4, p.addrs.PoolV6)
	slices.SortFunc(own, comparePrefixes)
	own = slices.Compact(own)
	if slices.Equal(own, p.own) {
		return nil
	}
	nothing := func() error { return nil }
	return apply(ctx, p.log, change{
		what:  "the protected ranges",
		stage: nothing,
		enforce: func(ctx context.Context) error {
			p.own = nil // from here on boxes may differ, until all have taken the change
			forward := policy.NewProtected(slices.Concat(p.addrs.Exempt, p.addrs.ForwardExempt), own)
			p.policies.shared.setProtected(policy.NewProtected(p.addrs.Exempt, own).WithForwarding(forward), own)
			return p.policies.spread(ctx)
		},
		commit: func() error { p.own = own; p.warnOfLost(own); return nil },
		settle: func() (bool, error) { return false, nil },
	})
}

// warnOfLost says which of the addresses that boxes can be given to leave from the host does not have.
func (p *protection) warnOfLost(own []netip.Prefix) {
	for _, a := range p.addrs.Sources {
		if !slices.Contains(own, netip.PrefixFrom(a, a.BitLen())) {
			p.log.Warn("the host does not have an address of network.sources: nothing leaves for boxes that have it as their source address", zap.Stringer("address", a))
		}
	}
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

// follow keeps the protected ranges up to date until ctx ends.
func (p *protection) follow(ctx context.Context) error {
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
			retry = p.try(ctx)
		case err := <-failed:
			return fmt.Errorf("the kernel's address events ended: %w", err)
		case _, ok := <-updates:
			if ctx.Err() == nil && !ok {
				return errors.New("the kernel's address events ended")
			}
			if !ok {
				return nil
			}
			retry = p.try(ctx)
		}
	}
}

// addressRetry is how long after a failure new addresses are protected again.
const addressRetry = time.Second

// try is update for follow: a failure is logged, and the returned channel says when to try again; nil, which never
// delivers, means that all is well.
func (p *protection) try(ctx context.Context) <-chan time.Time {
	err := p.update(ctx)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	p.log.Error("new addresses of the host are not protected in every box; trying again", zap.Error(err))
	return time.After(addressRetry)
}
