package link

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/namespace"
)

// The boxes' links have the MTU of the host's uplink. With a larger one a box would learn only from ICMP errors, which many
// networks drop, that its packets do not fit; a smaller one would waste capacity of the uplink.

const (
	defaultMTU = 1500      // without an uplink
	minMTU     = 1280      // the minimum for IPv6 (RFC 8200, section 5)
	maxMTU     = 1<<16 - 1 // the maximum of a veth
)

// probeAddresses are addresses that only the default route covers. No packet is sent there.
var probeAddresses = []net.IP{net.IPv4(1, 1, 1, 1), net.ParseIP("2606:4700:4700::1111")}

// uplinkMTU returns the MTU of the interface to the internet, the smaller one if each family has its own; 0
// without an uplink.
func (l *Links) uplinkMTU() (mtu int) {
	for _, ip := range probeAddresses {
		routes, err := l.nl.RouteGet(ip)
		if err != nil || len(routes) == 0 {
			continue
		}
		link, err := l.nl.LinkByIndex(routes[0].LinkIndex)
		if err != nil || link.Attrs().Flags&net.FlagLoopback != 0 {
			continue
		}
		if m := min(max(link.Attrs().MTU, minMTU), maxMTU); mtu == 0 || m < mtu {
			mtu = m
		}
	}
	return mtu
}

// MeasureUplink updates the MTU for links of boxes from the uplink, and reports whether it has changed. Without an uplink,
// the last value stays.
func (l *Links) MeasureUplink() (changed bool) {
	mtu := l.uplinkMTU()
	l.mu.Lock()
	defer l.mu.Unlock()
	if mtu == 0 || mtu == l.mtu {
		return false
	}
	l.mtu = mtu
	return true
}

func (l *Links) wantedMTU() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mtu
}

// Resize sets the MTU of the uplink on both ends of a box's link. A guest stack reads its MTU only when it starts, and its
// larger packets would be dropped later, so its link stays as it is.
func (l *Links) Resize(b *Attachment, index int) error {
	if b.GuestStack {
		return nil
	}
	host, err := l.nl.LinkByIndex(index)
	if err != nil {
		return fmt.Errorf("interface %s: %w", b.name(), err)
	}
	ns, inside, err := namespace.Open(b.NetNS)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	defer inside.Close()
	return l.resize(b, host, inside)
}

// resize changes both ends in such an order that the receiving end always accepts any packet that the other may send.
func (l *Links) resize(b *Attachment, host netlink.Link, inside *netlink.Handle) error {
	box, err := inside.LinkByName(Inside)
	if err != nil {
		return fmt.Errorf("inside the box: interface %s: %w", Inside, err)
	}
	mtu := l.wantedMTU()
	ends := []struct {
		handle *netlink.Handle
		link   netlink.Link
	}{{l.nl, host}, {inside, box}}
	if mtu < host.Attrs().MTU {
		ends[0], ends[1] = ends[1], ends[0]
	}
	for _, end := range ends {
		if end.link.Attrs().MTU == mtu {
			continue
		}
		if err := end.handle.LinkSetMTU(end.link, mtu); err != nil {
			return fmt.Errorf("interface %s of box %s: MTU %d: %w", end.link.Attrs().Name, b.Box, mtu, err)
		}
	}
	return nil
}
