package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/internal/fault"
)

// boxLink is the name of the interface inside a box.
const boxLink = "eth0"

// aliasPrefix and the box ID are the alias of a host-side interface, so that `ip link` names the box.
const aliasPrefix = "boxgate box "

// attach makes, adopts or repairs the interface pair of a box and returns the index of the host side. The host side
// comes up last: until then nothing the box sends arrives.
func (f *Firewall) attach(ctx context.Context, b *box) (int, error) {
	if err := fault.At(ctx, "link: box registered"); err != nil {
		return 0, err
	}
	ns, inside, err := openNamespace(b.NetNS)
	if err != nil {
		return 0, err
	}
	defer func() { _ = ns.Close() }()
	defer inside.Close()
	link, err := f.findLink(b, inside)
	if err != nil {
		return 0, err
	}
	made := link == nil
	if made {
		if link, err = f.createLink(b, ns); err != nil {
			return 0, err
		}
	}
	index := link.Attrs().Index
	if err := fault.At(ctx, "link: pair made"); err != nil {
		return 0, err
	}
	if err := f.prepareHostSide(b, link); err != nil {
		return 0, err
	}
	// A guest's stack has taken the addresses off the interface. With them there, the kernel would answer in its place.
	if made || !b.GuestStack {
		if err := f.configureInside(b, inside, ns, link.Attrs().HardwareAddr); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(ctx.Err(), fault.At(ctx, "link: box's end up")); err != nil {
		return 0, err
	}
	if err := f.raiseHostSide(b, link); err != nil {
		return 0, err
	}
	return index, fault.At(ctx, "link: host's end up")
}

// errNamespaceGone says that a box has no network namespace any more.
var errNamespaceGone = errors.New("it is gone")

// openNamespace opens a box's network namespace.
func openNamespace(path string) (netns.NsHandle, *netlink.Handle, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			err = fmt.Errorf("%w: %w", errNamespaceGone, err)
		}
		return ns, nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	inside, err := netlink.NewHandleAt(ns)
	if err != nil {
		if errors.Is(err, unix.EINVAL) { // the path is left, and nothing is mounted there
			err = fmt.Errorf("%w: %w", errNamespaceGone, err)
		}
		_ = ns.Close()
		return ns, nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return ns, inside, nil
}

// findLink returns the host side if a pair that leads into this very namespace is there. A pair that leads elsewhere
// is of an earlier life of the box and is deleted.
func (f *Firewall) findLink(b *box, inside *netlink.Handle) (netlink.Link, error) {
	host, err := f.nl.LinkByName(b.link)
	peer, peerErr := inside.LinkByName(boxLink)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		// The box's end alone: somebody has renamed the host side, or moved it away.
		if peerErr == nil && bytes.Equal(peer.Attrs().HardwareAddr, linkMAC(b.Box, "box")) {
			if err := inside.LinkDel(peer); err != nil {
				return nil, fmt.Errorf("inside the box: delete stale interface %s: %w", boxLink, err)
			}
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", b.link, err)
	}
	if peerErr == nil && peer.Attrs().ParentIndex == host.Attrs().Index && host.Attrs().ParentIndex == peer.Attrs().Index &&
		bytes.Equal(peer.Attrs().HardwareAddr, linkMAC(b.Box, "box")) {
		return host, nil
	}
	if err := f.nl.LinkDel(host); err != nil {
		return nil, fmt.Errorf("delete stale interface %s: %w", b.link, err)
	}
	return nil, nil
}

func (f *Firewall) createLink(b *box, ns netns.NsHandle) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.Group = b.link, linkMAC(b.Box, "host"), linkGroup
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: boxLink, PeerHardwareAddr: linkMAC(b.Box, "box"),
		PeerNamespace: netlink.NsFd(ns)}
	if err := f.nl.LinkAdd(pair); err != nil {
		return nil, fmt.Errorf("interface %s: %w", b.link, err)
	}
	link, err := f.nl.LinkByName(b.link)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", b.link, err)
	}
	return link, nil
}

// prepareHostSide sets what must hold before the first packet: the group by which rules know the interface, the mark
// of what is not judged, and no way for the box to learn addresses of the host or to change its tables.
func (f *Firewall) prepareHostSide(b *box, link netlink.Link) error {
	if err := f.nl.LinkSetGroup(link, int(linkGroup)); err != nil {
		return fmt.Errorf("interface %s: group: %w", b.link, err)
	}
	if err := f.nl.LinkSetAlias(link, aliasPrefix+string(b.Box)); err != nil {
		return fmt.Errorf("interface %s: alias: %w", b.link, err)
	}
	if err := f.setGate(link); err != nil {
		return fmt.Errorf("interface %s: %w", b.link, err)
	}
	return inNamespace(f.ns, func() error { return writeSysctls(linkSysctls(b.link)) })
}

// linkSysctls are the values of a host-side interface.
func linkSysctls(link string) []sysctl {
	v4, v6 := "ipv4/conf/"+link+"/", "ipv6/conf/"+link+"/"
	return []sysctl{
		{path: v6 + "disable_ipv6", value: "0"},
		{path: v6 + "addr_gen_mode", value: "1"}, // no link-local address
		{path: v6 + "accept_ra", value: "0"},
		{path: v6 + "accept_redirects", value: "0"},
		{path: v6 + "forwarding", value: "1"},
		// What is not judged looks like multicast, see setGate, and IPv6 would drop it before it is judged.
		{path: v6 + "drop_unicast_in_l2_multicast", value: "0"},
		{path: v4 + "forwarding", value: "1"},
		{path: v4 + "rp_filter", value: "1"},
		{path: v4 + "arp_ignore", value: "8"}, // no answer for any address of the host
		{path: v4 + "accept_redirects", value: "0"},
		{path: v4 + "send_redirects", value: "0"},
		{path: v4 + "proxy_arp", value: "0"},
		{path: v4 + "route_localnet", value: "0"},
		{path: v4 + "accept_local", value: "0"},
		{path: v4 + "drop_unicast_in_l2_multicast", value: "1"}, // what is not judged: see setGate
	}
}

// raiseHostSide brings the interface up and routes the box's addresses to it. The preferred source keeps the host's
// own addresses from the box.
func (f *Firewall) raiseHostSide(b *box, link netlink.Link) error {
	if err := f.nl.LinkSetUp(link); err != nil {
		return fmt.Errorf("interface %s: %w", b.link, err)
	}
	for _, p := range []struct{ box, gateway netip.Addr }{{b.V4, f.cfg.GatewayV4}, {b.V6, f.cfg.GatewayV6}} {
		if err := f.dropForeignRoutes(link, p.box); err != nil {
			return err
		}
		if err := f.nl.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: hostNet(p.box),
			Src: p.gateway.AsSlice(), Scope: unix.RT_SCOPE_LINK, Protocol: kernelProtocol}); err != nil {
			return fmt.Errorf("route to %v: %w", p.box, err)
		}
		if err := f.nl.NeighSet(neighbour(link.Attrs().Index, p.box, linkMAC(b.Box, "box"))); err != nil {
			return fmt.Errorf("neighbour %v: %w", p.box, err)
		}
	}
	return nil
}

// dropForeignRoutes removes routes of the interface to other addresses than the box's: the box had another address
// before.
func (f *Firewall) dropForeignRoutes(link netlink.Link, keep netip.Addr) error {
	routes, err := f.nl.RouteList(link, nlFamily(familyOf(keep)))
	if err != nil {
		return fmt.Errorf("routes of %s: %w", link.Attrs().Name, err)
	}
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsMulticast() || r.Dst.IP.IsLinkLocalUnicast() || r.Dst.String() == hostNet(keep).String() {
			continue
		}
		if err := f.nl.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("delete route %v: %w", r.Dst, err)
		}
	}
	return nil
}

func neighbour(link int, a netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: link, Family: nlFamily(familyOf(a)), State: netlink.NUD_PERMANENT, IP: a.AsSlice(),
		HardwareAddr: mac}
}

// configureInside gives the box its addresses, its default routes, and the gateway as a permanent neighbour.
func (f *Firewall) configureInside(b *box, inside *netlink.Handle, ns netns.NsHandle, hostMAC net.HardwareAddr) error {
	if err := inNamespace(ns, func() error {
		return writeSysctls([]sysctl{
			{path: "ipv6/conf/" + boxLink + "/disable_ipv6", value: "0"},
			{path: "ipv6/conf/" + boxLink + "/accept_ra", value: "0"},
			{path: "ipv6/conf/" + boxLink + "/addr_gen_mode", value: "1"},
		})
	}); err != nil {
		return fmt.Errorf("inside the box: %w", err)
	}
	for _, name := range []string{"lo", boxLink} {
		link, err := inside.LinkByName(name)
		if err != nil {
			return fmt.Errorf("inside the box: interface %s: %w", name, err)
		}
		if name == boxLink {
			if err := replaceAddresses(inside, link, b); err != nil {
				return fmt.Errorf("inside the box: %w", err)
			}
		}
		if err := inside.LinkSetUp(link); err != nil {
			return fmt.Errorf("inside the box: interface %s: %w", name, err)
		}
	}
	return f.routeInside(b, inside, hostMAC)
}

// mostReplaced is how many addresses are taken from a box at once. One with a say in its own network can have any number;
// what it sends from them is dropped.
const mostReplaced = 16

func replaceAddresses(inside *netlink.Handle, link netlink.Link, b *box) error {
	have, err := inside.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	replaced := 0
	for _, a := range have {
		if ip, _ := netip.AddrFromSlice(a.IP); ip.Unmap() != b.V4 && ip != b.V6 && replaced < mostReplaced {
			replaced++
			if err := inside.AddrDel(link, &a); err != nil {
				return fmt.Errorf("address %v: %w", a.IPNet, err)
			}
		}
	}
	for _, a := range []netip.Addr{b.V4, b.V6} {
		if err := inside.AddrReplace(link, &netlink.Addr{IPNet: hostNet(a), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("address %v: %w", a, err)
		}
	}
	return nil
}

func (f *Firewall) routeInside(b *box, inside *netlink.Handle, hostMAC net.HardwareAddr) error {
	link, err := inside.LinkByName(boxLink)
	if err != nil {
		return fmt.Errorf("inside the box: interface %s: %w", boxLink, err)
	}
	index := link.Attrs().Index
	for _, p := range []struct{ box, gateway netip.Addr }{{b.V4, f.cfg.GatewayV4}, {b.V6, f.cfg.GatewayV6}} {
		all := netip.PrefixFrom(p.gateway, 0).Masked()
		for _, r := range []*netlink.Route{
			{LinkIndex: index, Dst: hostNet(p.gateway), Scope: unix.RT_SCOPE_LINK},
			{LinkIndex: index, Dst: ipNet(all), Gw: p.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)},
		} {
			if err := inside.RouteReplace(r); err != nil {
				return fmt.Errorf("inside the box: route to %v: %w", r.Dst, err)
			}
		}
		if err := inside.NeighSet(neighbour(index, p.gateway, hostMAC)); err != nil {
			return fmt.Errorf("inside the box: neighbour %v: %w", p.gateway, err)
		}
	}
	return nil
}

// deleteLink removes a host-side interface, and with it the box's end. One that is not there is no error.
func (f *Firewall) deleteLink(name string) error {
	link, err := f.nl.LinkByName(name)
	if err == nil {
		err = f.nl.LinkDel(link)
	}
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete interface %s: %w", name, err)
	}
	return nil
}

// deleteStrayLinks removes host-side interfaces of boxes that nothing knows.
func (f *Firewall) deleteStrayLinks() error {
	known := map[string]bool{}
	for _, b := range f.boxes {
		known[b.link] = true
	}
	return f.deleteLinksBut(known)
}

func (f *Firewall) deleteLinks() error { return f.deleteLinksBut(nil) }

func (f *Firewall) deleteLinksBut(known map[string]bool) error {
	links, err := f.nl.LinkList()
	if err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		if l.Attrs().Group == linkGroup && !known[l.Attrs().Name] {
			errs = append(errs, f.deleteLink(l.Attrs().Name))
		}
	}
	return errors.Join(errs...)
}
