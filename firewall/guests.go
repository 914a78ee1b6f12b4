package firewall

import (
	"errors"
	"fmt"

	"boxgate/firewall/dhcp"
	"boxgate/firewall/link"
	"boxgate/firewall/namespace"
	"boxgate/policy"
)

// serveGuest starts the DHCP server of a box with a tap, unless it runs on that interface already. Other boxes have none.
func (f *Firewall) serveGuest(b *box, at link.Place) error {
	if b.Tap == nil || b.Tap.NoDHCP {
		return nil
	}
	if s := f.guests[b.Box]; s != nil {
		if s.Index() == at.Index {
			return nil
		}
		f.dismissGuest(b.Box)
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

// dismissGuest stops the DHCP server of a box, if it has one.
func (f *Firewall) dismissGuest(id policy.BoxID) {
	if s := f.guests[id]; s != nil {
		delete(f.guests, id)
		_ = s.Close()
	}
}

// dismissGuests stops all of them.
func (f *Firewall) dismissGuests() error {
	var errs []error
	for id, s := range f.guests {
		delete(f.guests, id)
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
