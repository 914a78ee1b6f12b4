package box

import (
	"fmt"
	"net"
	"net/netip"

	"boxgate/api"
	"boxgate/firewall"
	"boxgate/host/state"
	"boxgate/policy/document"
	"boxgate/store"
)

// checkTap checks the name of a requested tap; nil: none is requested.
func checkTap(t *api.Tap) error {
	if t == nil {
		return nil
	}
	if err := firewall.CheckTapName(t.Name); err != nil {
		return &document.InvalidError{Problems: []document.Problem{{Pointer: "/tap/name", Message: err.Error()}}}
	}
	return nil
}

// storedTap converts a requested tap for the store.
func storedTap(t *api.Tap) *store.Tap {
	if t == nil {
		return nil
	}
	return &store.Tap{Name: t.Name, Owner: t.Owner, MultiQueue: t.MultiQueue, NoDHCP: t.NoDHCP}
}

// tapOf returns the tap of an attached box for the firewall; nil if it has none or was launched.
func tapOf(a *store.Attached) *firewall.Tap {
	if a == nil || a.Tap == nil {
		return nil
	}
	return &firewall.Tap{Name: a.Tap.Name, Owner: a.Tap.Owner, MultiQueue: a.Tap.MultiQueue, NoDHCP: a.Tap.NoDHCP, Inside: a.Kind != api.AttachTap}
}

// describeTap sets what the API shows of the tap of a box, if it has one. The box is not in the table yet.
func (l *Service) describeTap(b *state.Box) {
	if b.Attached == nil || b.Attached.Tap == nil {
		return
	}
	t := b.Attached.Tap
	b.Tap = &api.Tap{
		Name: t.Name, Owner: t.Owner, MultiQueue: t.MultiQueue, NoDHCP: t.NoDHCP, MAC: firewall.GuestMAC(b.ID).String(),
		Addresses: []netip.Prefix{netip.PrefixFrom(b.V4, l.addrs.PoolV4.Bits()), netip.PrefixFrom(b.V6, l.addrs.PoolV6.Bits())},
		Gateways:  []netip.Addr{l.addrs.GatewayV4, l.addrs.GatewayV6},
		KernelIP:  kernelIP(b.V4, l.addrs.GatewayV4, l.addrs.PoolV4.Bits()),
	}
	b.Publish()
}

// kernelIP returns the argument that configures IPv4 and DNS in a Linux kernel (its documentation nfsroot.rst). The kernel
// accepts a gateway only in the network of the address, so that network is the pool of the boxes; other boxes in it do not
// answer.
func kernelIP(box, gateway netip.Addr, bits int) string {
	mask := net.IP(net.CIDRMask(bits, box.BitLen()))
	return fmt.Sprintf("ip=%v::%v:%v::eth0:off:%v", box, gateway, mask, gateway)
}
