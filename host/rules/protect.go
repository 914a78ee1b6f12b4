package rules

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"boxgate/config"
	"boxgate/firewall"
	"boxgate/host/change"
	"boxgate/policy/name"
)

// Protection keeps the addresses of the host and the pools of the boxes protected in every box.
type Protection struct {
	log      *zap.Logger
	addrs    config.Addresses
	policies *Service
	list     func() ([]netip.Addr, error) // [firewall.HostAddresses]

	own  []netip.Prefix // protected in every box; nil while that is not known; used by update alone, and by nobody else while that may run
	seen []netip.Prefix // since the addresses were last listed as they are; used by update alone
}

// NewProtection protects nothing until update is called.
func NewProtection(log *zap.Logger, addrs config.Addresses, rules *Service) *Protection {
	return &Protection{log: log, addrs: addrs, policies: rules, list: firewall.HostAddresses}
}

// Own returns what is protected in every box besides the configuration. Call it while update cannot run.
func (p *Protection) Own() []netip.Prefix { return p.own }

// Update protects the present addresses of the host, if they have changed.
//
// There is nothing to stage, as the next start reads the addresses anew, and nothing to roll back to: the host has these
// addresses, and a box that was kept from them must not get them back because another could not be. A failed update is
// tried again.
func (p *Protection) Update(ctx context.Context) error {
	own, reading := p.present()
	if own == nil || slices.Equal(own, p.own) {
		return reading
	}
	nothing := func() error { return nil }
	return errors.Join(reading, change.Apply(ctx, p.log, change.Change{
		What:  "the protected ranges",
		Stage: nothing,
		Enforce: func(ctx context.Context) error {
			p.own = nil // from here on boxes may differ, until all have taken the change
			forward := name.NewProtected(slices.Concat(p.addrs.Exempt, p.addrs.ForwardExempt), own)
			p.policies.shared.setProtected(name.NewProtected(p.addrs.Exempt, own).WithForwarding(forward), own)
			return p.policies.spread(ctx)
		},
		Commit: func() error { p.own = own; p.warnOfLost(own); return nil },
		Settle: func() (bool, error) { return false, nil },
	}))
}

// present returns what is to be protected now, sorted; nil if that is not known. Together with an error it is what can be: while the
// addresses change too fast to be listed, none that was seen is left out.
func (p *Protection) present() ([]netip.Prefix, error) {
	own, err := hostRoutes(p.list())
	if err != nil {
		err = fmt.Errorf("reading the host's addresses: %w", err)
	}
	if len(own) == 0 && err != nil {
		return nil, err
	}
	own = append(own, p.addrs.PoolV4, p.addrs.PoolV6)
	if err != nil {
		own = append(own, p.seen...)
	}
	slices.SortFunc(own, comparePrefixes)
	p.seen = slices.Compact(own)
	return p.seen, err
}

// warnOfLost says which of the addresses that boxes can be given to leave from the host does not have.
func (p *Protection) warnOfLost(own []netip.Prefix) {
	for _, a := range p.addrs.Sources {
		if !slices.Contains(own, netip.PrefixFrom(a, a.BitLen())) {
			p.log.Warn("the host does not have an address of network.sources: nothing leaves for boxes that have it as their source address", zap.Stringer("address", a))
		}
	}
}

// hostRoutes returns addresses as host routes, and the error of listing them.
func hostRoutes(list []netip.Addr, err error) (own []netip.Prefix, _ error) {
	for _, a := range list {
		own = append(own, netip.PrefixFrom(a, a.BitLen()))
	}
	return own, err
}

func comparePrefixes(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

// Follow keeps the protected ranges up to date until ctx ends.
func (p *Protection) Follow(ctx context.Context) error {
	for ctx.Err() == nil {
		changed, err := firewall.HostAddressChanges(ctx)
		if err != nil {
			return err
		}
		if p.followBy(ctx, changed); ctx.Err() == nil {
			p.log.Warn("changes of the host's addresses were missed; looking again")
		}
	}
	return nil
}

// followBy is follow until changed is closed.
func (p *Protection) followBy(ctx context.Context, changed <-chan struct{}) {
	// The first look comes after the subscription, so that no address is missed in between.
	retry := time.After(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-retry:
		case _, ok := <-changed:
			if !ok {
				return
			}
		}
		retry = p.try(ctx)
	}
}

// addressRetry is how long after a failure new addresses are protected again.
const addressRetry = time.Second

// try is update for follow: a failure is logged, and the returned channel says when to try again; nil, which never
// delivers, means that all is well.
func (p *Protection) try(ctx context.Context) <-chan time.Time {
	err := p.Update(ctx)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	p.log.Error("new addresses of the host are not protected in every box; trying again", zap.Error(err))
	return time.After(addressRetry)
}
