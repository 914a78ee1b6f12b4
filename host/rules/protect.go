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

// Protection keeps the host's addresses and the boxes' address pools protected in every box.
type Protection struct {
	log      *zap.Logger
	addrs    config.Addresses
	policies *Service
	list     func() ([]netip.Addr, error) // [firewall.HostAddresses]

	own  []netip.Prefix // protected in every box, nil if unknown; accessed only by Update, and by Own while Update cannot run
	seen []netip.Prefix // all addresses listed since the last complete listing; accessed only by Update
}

// NewProtection returns a Protection; call [Protection.Update] to apply it.
func NewProtection(log *zap.Logger, addrs config.Addresses, rules *Service) *Protection {
	return &Protection{log: log, addrs: addrs, policies: rules, list: firewall.HostAddresses}
}

// Own returns the ranges protected in every box in addition to the configured ones. It must not run concurrently with
// Update.
func (p *Protection) Own() []netip.Prefix { return p.own }

// Update protects the host's present addresses, if they have changed.
//
// The change is not staged, because the next start reads the addresses again, and not rolled back: a box that is already
// denied the host's addresses must not regain them because another box failed. A box that fails to take the change
// twice is closed; the update is retried for the others.
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
			p.own = nil                                      // unknown until all boxes have taken the change
			services := p.policies.shared.cluster.Prefixes() // public addresses in some clusters
			forward := name.NewProtected(slices.Concat(p.addrs.Exempt, p.addrs.ForwardExempt), own, services...)
			p.policies.shared.setProtected(name.NewProtected(p.addrs.Exempt, own, services...).WithForwarding(forward), own)
			return p.policies.spreadOrClose(ctx)
		},
		Commit:      func() error { p.own = own; p.warnOfLost(own); return nil },
		ApplyStored: func() (bool, error) { return false, nil },
	}))
}

// present returns the ranges to protect, sorted, or nil if they are unknown. With an error the list may be incomplete; it
// then contains every address seen since the last complete listing, as addresses may change faster than they can be
// listed.
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

// warnOfLost logs the addresses of network.sources that the host lacks.
func (p *Protection) warnOfLost(own []netip.Prefix) {
	for _, a := range p.addrs.Sources {
		if !slices.Contains(own, netip.PrefixFrom(a, a.BitLen())) {
			p.log.Warn("the host does not have an address of network.sources: boxes that have it as their source address cannot send", zap.Stringer("address", a))
		}
	}
}

// hostRoutes converts addresses to host routes, passing err through.
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

// Follow keeps the protected ranges up to date until ctx is done.
func (p *Protection) Follow(ctx context.Context) error {
	for ctx.Err() == nil {
		changed, err := firewall.HostAddressChanges(ctx)
		if err != nil {
			return err
		}
		if p.followChanges(ctx, changed); ctx.Err() == nil {
			p.log.Warn("changes of the host's addresses were missed; reading them again")
		}
	}
	return nil
}

// followChanges updates the protected ranges at every change, until changed is closed.
func (p *Protection) followChanges(ctx context.Context, changed <-chan struct{}) {
	// The first update comes after the subscription, so that no address is missed in between.
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
		retry = p.updateOrRetry(ctx)
	}
}

// addressRetry is the delay before a failed update is retried.
const addressRetry = time.Second

// updateOrRetry calls Update and logs a failure. The returned channel fires when it is time to retry; it is nil if no retry is
// needed.
func (p *Protection) updateOrRetry(ctx context.Context) <-chan time.Time {
	err := p.Update(ctx)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	p.log.Error("new addresses of the host are not protected in every box; trying again", zap.Error(err))
	return time.After(addressRetry)
}
