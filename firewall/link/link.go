// Package link makes, repairs and deletes the interface pairs that join boxes to the host, with the eBPF filter that marks
// packets from boxes as not judged.
package link

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// Inside is the name of the interface inside a box.
const Inside = "eth0"

// aliasPrefix and the box ID are the alias of a host-side interface, so that `ip link` shows the box.
const aliasPrefix = "boxgate box "

// Attachment is the network attachment of one box.
type Attachment struct {
	Box    policy.BoxID
	NetNS  string // path of the box's network namespace
	V4, V6 netip.Addr

	// GuestStack: the sandbox's own network stack uses the interface. The namespace is configured only when the interface
	// is created, for a sandbox that reads its configuration there, and not changed afterwards.
	GuestStack bool
	Tap        *Tap // of a virtual machine, with GuestStack set; else nil

	Rates Rates // the box's own
}

// Rates are how many bytes per second a box may send and receive; 0: as many as all boxes; [policy.Unlimited]: any number.
type Rates struct {
	Send, Receive int64
	// MaxSend is a bound on Send that clients who may lower Send cannot change: as long as it stays the same, no change of Send
	// lets more pass. 0 and [policy.Unlimited]: no bound except the rate of all boxes.
	MaxSend int64
}

// name returns the name of the box's interface on the host.
func (a *Attachment) name() string { return network.LinkName(a.Box) }

// Links are the interface pairs of boxes in the gateway's network namespace. Methods that change them are not safe for
// concurrent use.
type Links struct {
	network.Addresses
	Receive uint64 // bytes per second that a box without its own rate may receive; 0: no limit. Set before the first Attach

	ns      netns.NsHandle
	nl      *netlink.Handle
	gate    int // descriptor of the program that marks packets from boxes
	sysctls namespace.Sysctls

	mu       sync.Mutex
	indices  map[string]int // interface indices by name, as found or attached; guarded by mu
	surveyed bool           // indices includes interfaces of an earlier run; guarded by mu
	mtu      int            // of boxes' links; guarded by mu
}

// New returns the Links of the namespace that the handle is in. Both remain owned by the caller.
func New(ns netns.NsHandle, nl *netlink.Handle, addresses network.Addresses) (*Links, error) {
	gate, err := loadGate()
	if err != nil {
		return nil, fmt.Errorf("packet gate (eBPF): %w", err)
	}
	l := &Links{Addresses: addresses, ns: ns, nl: nl, gate: gate, indices: map[string]int{}, mtu: defaultMTU}
	l.MeasureUplink()
	return l, nil
}

// Close closes the program's descriptor. The interfaces and their filters stay.
func (l *Links) Close() error {
	l.sysctls.Close()
	return unix.Close(l.gate)
}

// Place locates a box's interface pair.
type Place struct {
	Index     int          // of the host side
	Namespace namespace.ID // of the other end
}

// Attach creates, adopts or repairs the interface pair of a box and returns its place. The host side comes up last: until
// then no packet of the box arrives.
func (l *Links) Attach(ctx context.Context, b *Attachment, v *View) (at Place, err error) {
	if err := fault.At(ctx, "link: box registered"); err != nil {
		return at, err
	}
	ns, inside, err := namespace.Open(b.NetNS)
	if err != nil {
		return at, err
	}
	defer func() { _ = ns.Close() }()
	defer inside.Close()
	if at.Namespace, err = namespace.IDOf(ns); err != nil {
		return at, err
	}
	link, err := l.findLink(b, inside, v)
	if err != nil {
		return at, err
	}
	made := link == nil
	if made {
		if link, err = l.createLink(b, ns); err != nil {
			return at, err
		}
	}
	at.Index = link.Attrs().Index
	l.mu.Lock()
	l.indices[b.name()] = at.Index
	l.mu.Unlock()
	if err := fault.At(ctx, "link: pair made"); err != nil {
		return at, err
	}
	if err := l.prepareHostSide(b, link, made, v); err != nil {
		return at, err
	}
	if err := l.prepareBoxSide(b, inside, ns, link, made); err != nil {
		return at, err
	}
	if err := errors.Join(ctx.Err(), fault.At(ctx, "link: box's end up")); err != nil {
		return at, err
	}
	if err := l.raiseHostSide(b, link, made, v); err != nil {
		return at, err
	}
	return at, fault.At(ctx, "link: host's end up")
}

// prepareBoxSide configures the box's end.
func (l *Links) prepareBoxSide(b *Attachment, inside *netlink.Handle, ns netns.NsHandle, link netlink.Link, made bool) error {
	switch {
	case b.Tap.isHostSide():
		return l.nameTap(b, link)
	case b.Tap != nil:
		return l.joinTap(b, inside, ns)
	case b.GuestStack && !made: // it has removed the addresses from the interface. With them, the kernel would answer instead.
		return nil
	}
	if err := l.configureInside(b, inside, ns, link.Attrs().HardwareAddr); err != nil || made {
		return err
	}
	return l.resize(b, link, inside)
}

// findLink returns the host side of a pair whose other end is in this very namespace, or nil. A pair to
// another namespace is left from an earlier box with this ID and is deleted.
func (l *Links) findLink(b *Attachment, inside *netlink.Handle, v *View) (netlink.Link, error) {
	if b.Tap.isHostSide() {
		return l.findTap(b, v)
	}
	host, err := l.linkNamed(b.name(), v)
	if err != nil {
		return nil, err
	}
	peer, peerErr := inside.LinkByName(Inside)
	if host == nil {
		// Only the box's end exists: the host side was renamed or moved away.
		if peerErr == nil && bytes.Equal(peer.Attrs().HardwareAddr, linkMAC(b.Box, "box")) {
			if err := inside.LinkDel(peer); err != nil {
				return nil, fmt.Errorf("inside the box: delete stale interface %s: %w", Inside, err)
			}
		}
		return nil, nil
	}
	if peerErr == nil && peer.Attrs().ParentIndex == host.Attrs().Index && host.Attrs().ParentIndex == peer.Attrs().Index &&
		bytes.Equal(peer.Attrs().HardwareAddr, linkMAC(b.Box, "box")) {
		return host, nil
	}
	if err := l.nl.LinkDel(host); err != nil {
		return nil, fmt.Errorf("delete stale interface %s: %w", b.name(), err)
	}
	return nil, nil
}

func (l *Links) createLink(b *Attachment, ns netns.NsHandle) (netlink.Link, error) {
	if b.Tap.isHostSide() {
		return l.createTap(b)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.Group = b.name(), linkMAC(b.Box, "host"), network.LinkGroup
	attrs.MTU = l.wantedMTU() // both ends
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: Inside, PeerHardwareAddr: linkMAC(b.Box, "box"),
		PeerNamespace: netlink.NsFd(ns)}
	if err := l.nl.LinkAdd(pair); err != nil {
		return nil, fmt.Errorf("interface %s: %w", b.name(), err)
	}
	link, err := l.nl.LinkByName(b.name())
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", b.name(), err)
	}
	return link, nil
}

// prepareHostSide configures the host side before the first packet: the group by which rules recognize the interface, the
// gate, the receive limit, and sysctls that keep the box from learning addresses of the host or changing its tables.
func (l *Links) prepareHostSide(b *Attachment, link netlink.Link, made bool, v *View) error {
	if link.Attrs().Group != network.LinkGroup {
		if err := l.nl.LinkSetGroup(link, int(network.LinkGroup)); err != nil {
			return fmt.Errorf("interface %s: group: %w", b.name(), err)
		}
	}
	if alias := aliasPrefix + string(b.Box); link.Attrs().Alias != alias {
		if err := l.nl.LinkSetAlias(link, alias); err != nil {
			return fmt.Errorf("interface %s: alias: %w", b.name(), err)
		}
	}
	if err := errors.Join(l.setGate(b, link), l.setShaper(link, b.Rates.Receive, made)); err != nil {
		return fmt.Errorf("interface %s: %w", b.name(), err)
	}
	want := linkSysctls(b.name())
	if !made && v.conf(b.name()).haveValues(want) {
		return nil
	}
	return namespace.Do(l.ns, func() error { return l.sysctls.Write(want) })
}

// linkSysctls returns the sysctls of a host-side interface.
func linkSysctls(link string) []namespace.Sysctl {
	v4, v6 := "ipv4/conf/"+link+"/", "ipv6/conf/"+link+"/"
	return []namespace.Sysctl{
		{Path: v6 + "disable_ipv6", Value: "0"},
		{Path: v6 + "addr_gen_mode", Value: strconv.Itoa(addrGenNone)}, // no link-local address
		{Path: v6 + "accept_ra", Value: "0"},
		{Path: v6 + "accept_redirects", Value: "0"},
		{Path: v6 + "forwarding", Value: "1"},
		// Packets that are not judged yet look like multicast, see setGate, and IPv6 would drop them before they are
		// judged.
		{Path: v6 + "drop_unicast_in_l2_multicast", Value: "0"},
		{Path: v4 + "forwarding", Value: "1"},
		{Path: v4 + "rp_filter", Value: "1"},
		{Path: v4 + "arp_ignore", Value: "8"}, // no answer for any address of the host
		{Path: v4 + "accept_redirects", Value: "0"},
		{Path: v4 + "send_redirects", Value: "0"},
		{Path: v4 + "proxy_arp", Value: "0"},
		{Path: v4 + "route_localnet", Value: "0"},
		{Path: v4 + "accept_local", Value: "0"},
		{Path: v4 + "drop_unicast_in_l2_multicast", Value: "1"}, // packets not judged yet: see setGate
	}
}

// raiseHostSide brings the interface up and routes the box's addresses to it. The preferred source hides the host's own
// addresses from the box. Only an adopted interface can have other routes.
func (l *Links) raiseHostSide(b *Attachment, link netlink.Link, made bool, v *View) error {
	if link.Attrs().RawFlags&unix.IFF_UP == 0 {
		if err := l.nl.LinkSetUp(link); err != nil {
			return fmt.Errorf("interface %s: %w", b.name(), err)
		}
	}
	for _, p := range []struct{ box, gateway netip.Addr }{{b.V4, l.GatewayV4}, {b.V6, l.GatewayV6}} {
		routed := false
		if !made {
			var err error
			if routed, err = l.dropForeignRoutes(link, p.box, p.gateway, v); err != nil {
				return err
			}
		}
		if !routed {
			if err := l.nl.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: network.HostNet(p.box),
				Src: p.gateway.AsSlice(), Scope: unix.RT_SCOPE_LINK, Protocol: network.KernelProtocol}); err != nil {
				return fmt.Errorf("route to %v: %w", p.box, err)
			}
		}
		if err := l.nl.NeighSet(neighbour(link.Attrs().Index, p.box, linkMAC(b.Box, "box"))); err != nil {
			return fmt.Errorf("neighbour %v: %w", p.box, err)
		}
	}
	return nil
}

// dropForeignRoutes removes the interface's routes to other addresses than the box's, left from an earlier address of the
// box. It reports whether the route to the box's address exists.
func (l *Links) dropForeignRoutes(link netlink.Link, keep, gateway netip.Addr, v *View) (routed bool, err error) {
	routes, err := l.routesTo(link, keep, v)
	if err != nil {
		return false, err
	}
	for _, r := range routes {
		routed = routed || isRoute(r, keep, gateway)
		if r.Dst == nil || r.Dst.IP.IsMulticast() || r.Dst.IP.IsLinkLocalUnicast() || r.Dst.String() == network.HostNet(keep).String() {
			continue
		}
		if err := l.nl.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return false, fmt.Errorf("delete route %v: %w", r.Dst, err)
		}
	}
	return routed, nil
}

func neighbour(link int, a netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: link, Family: network.RouteFamily(network.FamilyOf(a)), State: netlink.NUD_PERMANENT, IP: a.AsSlice(),
		HardwareAddr: mac}
}

// configureInside sets the box's addresses, its default routes, and the gateway as a permanent neighbour.
func (l *Links) configureInside(b *Attachment, inside *netlink.Handle, ns netns.NsHandle, hostMAC net.HardwareAddr) error {
	if err := enableIPv6(inside, ns); err != nil {
		return fmt.Errorf("inside the box: %w", err)
	}
	for _, name := range []string{"lo", Inside} {
		link, err := inside.LinkByName(name)
		if err != nil {
			return fmt.Errorf("inside the box: interface %s: %w", name, err)
		}
		if name == Inside {
			if err := replaceAddresses(inside, link, b); err != nil {
				return fmt.Errorf("inside the box: %w", err)
			}
		}
		if link.Attrs().RawFlags&unix.IFF_UP != 0 {
			continue
		}
		if err := inside.LinkSetUp(link); err != nil {
			return fmt.Errorf("inside the box: interface %s: %w", name, err)
		}
	}
	return l.routeInside(b, inside, hostMAC)
}

// enableIPv6 enables IPv6 on the box's end without a link-local address: the gateway, the only neighbour on the link, has
// none either and so cannot advertise routes. It uses netlink and usually opens no file below /proc/sys/net: for each
// namespace where that was done the kernel keeps a directory entry with the same name, and searches all of them on every
// lookup.
func enableIPv6(inside *netlink.Handle, ns netns.NsHandle) error {
	on, noAddress := []namespace.Sysctl{{Path: "ipv6/conf/" + Inside + "/disable_ipv6", Value: "0"}}, false
	if err := namespace.Do(ns, func() error {
		have := confsNamed(Inside)
		noAddress = have.haveValues([]namespace.Sysctl{{Path: "ipv6/conf/" + Inside + "/addr_gen_mode", Value: strconv.Itoa(addrGenNone)}})
		if have.haveValues(on) {
			return nil
		}
		return namespace.WriteSysctls(on)
	}); err != nil || noAddress {
		return err
	}
	link, err := inside.LinkByName(Inside)
	if err == nil {
		err = inside.LinkSetIP6AddrGenMode(link, addrGenNone)
	}
	if err != nil {
		return fmt.Errorf("interface %s: link-local address: %w", Inside, err)
	}
	return nil
}

// addrGenNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenNone = 1

// maxReplaced is how many addresses are removed from a box in one repair. A box that controls its own network can have any
// number; packets from them are dropped.
const maxReplaced = 16

func replaceAddresses(inside *netlink.Handle, link netlink.Link, b *Attachment) error {
	have, err := inside.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	replaced, right := 0, map[netip.Addr]bool{}
	for _, a := range have {
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); ip == b.V4 || ip == b.V6 {
			right[ip] = a.IPNet.String() == network.HostNet(ip).String() && a.Flags&unix.IFA_F_PERMANENT != 0 && a.Flags&unix.IFA_F_TENTATIVE == 0
			continue
		}
		if replaced < maxReplaced {
			replaced++
			if err := inside.AddrDel(link, &a); err != nil {
				return fmt.Errorf("address %v: %w", a.IPNet, err)
			}
		}
	}
	for _, a := range []netip.Addr{b.V4, b.V6} {
		if right[a] {
			continue
		}
		if err := inside.AddrReplace(link, &netlink.Addr{IPNet: network.HostNet(a), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("address %v: %w", a, err)
		}
	}
	return nil
}

func (l *Links) routeInside(b *Attachment, inside *netlink.Handle, hostMAC net.HardwareAddr) error {
	link, err := inside.LinkByName(Inside)
	if err != nil {
		return fmt.Errorf("inside the box: interface %s: %w", Inside, err)
	}
	index := link.Attrs().Index
	for _, p := range []struct{ box, gateway netip.Addr }{{b.V4, l.GatewayV4}, {b.V6, l.GatewayV6}} {
		all := netip.PrefixFrom(p.gateway, 0).Masked()
		for _, r := range []*netlink.Route{
			{LinkIndex: index, Dst: network.HostNet(p.gateway), Scope: unix.RT_SCOPE_LINK},
			{LinkIndex: index, Dst: network.IPNet(all), Gw: p.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)},
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

// Lower takes a host-side interface down: it then passes no packet. A missing interface is not an error.
func (l *Links) Lower(name string) error {
	link, err := l.nl.LinkByName(name)
	if err == nil {
		err = l.nl.LinkSetDown(link)
	}
	if err != nil && !isGone(err) {
		return fmt.Errorf("lower interface %s: %w", name, err)
	}
	return nil
}

// Delete removes a host-side interface, and with it the box's end. A missing interface is not an error.
func (l *Links) Delete(name string) error {
	l.mu.Lock()
	delete(l.indices, name)
	l.mu.Unlock()
	link, err := l.nl.LinkByName(name)
	if err == nil {
		err = l.nl.LinkDel(link)
	}
	if err != nil && !isGone(err) {
		return fmt.Errorf("delete interface %s: %w", name, err)
	}
	return nil
}

// DeleteAll deletes interface pairs as Delete does, in one operation of the kernel.
func (l *Links) DeleteAll(names []string) error {
	if len(names) == 1 {
		return l.Delete(names[0])
	}
	l.mu.Lock()
	for _, name := range names {
		delete(l.indices, name)
	}
	l.mu.Unlock()
	found := false
	for _, name := range names {
		link, err := l.nl.LinkByName(name)
		if err == nil {
			err = l.nl.LinkSetGroup(link, int(network.LinkGroupLast))
			found = true
		}
		if err != nil && !isGone(err) {
			return fmt.Errorf("delete interface %s: %w", name, err)
		}
	}
	if !found {
		return nil
	}
	if err := l.checkGroup(network.LinkGroupLast, names); err != nil {
		return err
	}
	err := namespace.Do(l.ns, func() error {
		r := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
		r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC)) // without an index, the group selects the interfaces
		r.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(network.LinkGroupLast)))
		_, err := r.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil && !isGone(err) {
		return fmt.Errorf("delete %d interfaces: %w", len(names), err)
	}
	return nil
}

// checkGroup returns an error if the device group contains another interface: it belongs to another program.
func (l *Links) checkGroup(group uint32, names []string) error {
	links, err := namespace.Whole(l.nl.LinkList)
	if err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	for _, link := range links {
		if a := link.Attrs(); a.Group == group && !slices.Contains(names, a.Name) {
			return fmt.Errorf("interface %s has the device group %d, but does not belong to a box that is being removed", a.Name, group)
		}
	}
	return nil
}

// isGone reports whether an error means that the interface does not exist.
func isGone(err error) bool {
	return errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV)
}

// DeleteOthers removes the host-side interfaces of boxes whose index is not in known.
func (l *Links) DeleteOthers(known map[int]bool) error {
	var all map[int]transfer
	if err := namespace.Do(l.ns, func() (err error) {
		all, err = namespace.Whole(transfers)
		return err
	}); err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	var errs []error
	for index := range all {
		if known[index] {
			continue
		}
		link, err := l.nl.LinkByIndex(index)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err == nil && network.IsLinkGroup(link.Attrs().Group) {
			err = l.Delete(link.Attrs().Name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("interface %d: %w", index, err))
		}
	}
	return errors.Join(errs...)
}

// linkMAC returns a stable, locally administered address for one end of a box's link.
func linkMAC(id policy.BoxID, end string) []byte {
	sum := sha256.Sum256([]byte(end + " " + string(id)))
	mac := sum[:6]
	mac[0] = mac[0]&^3 | 2
	return mac
}

// shaperHandle is the handle of the queue that limits traffic to a box.
const shaperHandle = 0xb0c

// Bounds of a shaper: large enough to send segments of the largest size whole, but only a short moment of traffic, since
// queued packets delay everything else for the box.
const (
	minBurst     = 128 << 10 // bytes
	burstDivisor = 200       // divides the rate: 1/200 second
	queueDivisor = 20        // divides the rate: 1/20 second
)

// SetReceiveRate changes how many bytes per second the box of an attached interface may receive, see [Rates].
func (l *Links) SetReceiveRate(index int, own int64) error {
	link, err := l.nl.LinkByIndex(index)
	if err != nil {
		return fmt.Errorf("interface %d: %w", index, err)
	}
	return l.setShaper(link, own, false)
}

// setShaper limits traffic to the box to l.Receive bytes per second, or to its own rate, with a token bucket (tc-tbf(8)):
// senders on this host, such as the proxy, are slowed down without loss. An existing rate is changed in place. Without a
// limit, setShaper removes the limit that an earlier run has set.
func (l *Links) setShaper(link netlink.Link, own int64, made bool) error {
	rate := l.Receive
	if own != 0 {
		rate = uint64(max(own, 0))
	}
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(shaperHandle, 0), Parent: netlink.HANDLE_ROOT}
	if rate == 0 {
		if made {
			return nil
		}
		err := l.nl.QdiscDel(&netlink.Tbf{QdiscAttrs: attrs})
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("receive limit: %w", err)
		}
		return nil
	}
	burst := max(minBurst, rate/burstDivisor)
	err := l.nl.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: attrs, Rate: rate, Limit: uint32(burst + max(minBurst, rate/queueDivisor)),
		Buffer: netlink.Xmittime(rate, uint32(burst)),
	})
	if err != nil {
		return fmt.Errorf("receive limit (the kernel may lack CONFIG_NET_SCH_TBF): %w", err)
	}
	return nil
}

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

// Leftovers returns the host-side interfaces of all boxes, no matter which gateway made them.
func Leftovers(h *netlink.Handle) ([]string, error) {
	links, err := namespace.Whole(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	var names []string
	for _, l := range links {
		if network.IsLinkGroup(l.Attrs().Group) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

// DeleteLeftovers deletes them, and with them the boxes' ends and everything attached to both.
func DeleteLeftovers(h *netlink.Handle) error {
	names, err := Leftovers(h)
	if err != nil {
		return err
	}
	l := Links{nl: h}
	var errs []error
	for _, name := range names {
		errs = append(errs, l.Delete(name))
	}
	return errors.Join(errs...)
}
