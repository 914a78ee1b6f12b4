package firewall

import (
	"errors"
	"fmt"

	"boxgate/firewall/dhcp"
	"boxgate/firewall/link"
	"boxgate/firewall/namespace"
	"boxgate/policy"
)

// serveGuest starts the DHCP server of a box with a tap, unless it runs on that interface already, and has a deleted tap made again. Other
// boxes have neither.
func (f *Firewall) serveGuest(b *box, at link.Place) error {
	if b.Tap == nil {
		return nil
	}
	if err := f.followTap(b); err != nil || b.Tap.NoDHCP {
		return err
	}
	if s := f.guests[b.Box]; s != nil {
		if s.Index() == at.Index {
			return nil
		}
		delete(f.guests, b.Box)
		_ = s.Close()
	}
	host, err := f.nl.LinkByIndex(at.Index)
	if err != nil {
		return fmt.Errorf("tap %s: %w", b.Tap.Name, err)
	}
	c := dhcp.Client{MAC: link.MAC(b.Box), Host: link.HostMAC(b.Box), V4: b.V4, V6: b.V6, Bits: f.cfg.PoolV4.Bits(), Gateway: f.cfg.GatewayV4,
		DNS6: f.cfg.GatewayV6, Router: link.RouterV6, MTU: host.Attrs().MTU}
	return namespace.Do(f.ns, func() error {
		s, err := dhcp.Listen(at.Index, c)
		if err != nil {
			return err
		}
		if f.guests == nil {
			f.guests = map[policy.BoxID]*dhcp.Server{}
		}
		f.guests[b.Box] = s
		return nil
	})
}

// followTap has the tap of a box restored when it is deleted in the namespace of the box, where the watcher does not look. It begins
// anew at each repair: it may have ended.
func (f *Firewall) followTap(b *box) error {
	if !b.Tap.Inside {
		return nil
	}
	f.unfollowTap(b.Box)
	stop, err := link.FollowTap(&b.Attachment, func() { f.watcher.Suspect(b.Box) })
	if err != nil {
		return err
	}
	if f.taps == nil {
		f.taps = map[policy.BoxID]func(){}
	}
	f.taps[b.Box] = stop
	return nil
}

// unfollowTap ends followTap.
func (f *Firewall) unfollowTap(id policy.BoxID) {
	if stop := f.taps[id]; stop != nil {
		delete(f.taps, id)
		stop()
	}
}

// dismissGuest stops the DHCP server of a box, if it has one, and followTap.
func (f *Firewall) dismissGuest(id policy.BoxID) {
	f.unfollowTap(id)
	if s := f.guests[id]; s != nil {
		delete(f.guests, id)
		_ = s.Close()
	}
}

// dismissGuests stops all of them.
func (f *Firewall) dismissGuests() error {
	for id := range f.taps {
		f.unfollowTap(id)
	}
	var errs []error
	for id, s := range f.guests {
		delete(f.guests, id)
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
