package firewall

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/firewall/link"
	"boxgate/firewall/network"
	"boxgate/policy"
	"boxgate/policy/name"
)

// guest is a virtual machine on a tap: the test writes and reads the tap's frames, and can pass them to a network stack of
// the kernel in a namespace of its own.
type guest struct {
	Attachment
	w     *world
	tap   *os.File
	stack netns.NsHandle // see join

	mu   sync.Mutex
	seen [][]byte // frames to the guest
	nic  *os.File // the other end of its stack's interface; nil before join
}

// addGuest attaches a box with a tap, and opens it as a VMM does.
func (w *world) addGuest(id policy.BoxID, n byte, inside bool) *guest {
	w.t.Helper()
	w.boxNS[id] = newNamespace(w.t)
	g := &guest{w: w, Attachment: Attachment{Box: id, NetNS: fmt.Sprintf("/proc/self/fd/%d", int(w.boxNS[id])),
		V4: netip.AddrFrom4([4]byte{10, 77, 0, n}), V6: netip.MustParseAddr(fmt.Sprintf("fd77::%x", n)),
		GuestStack: true, Tap: &Tap{Name: "tap-" + string(id), Inside: inside}}}
	w.must(w.fw.AddBox(context.Background(), g.Attachment))
	ns := w.gateway
	if inside {
		ns = w.boxNS[id]
	}
	g.tap = w.openTap(ns, g.Tap.Name)
	go g.receive()
	return g
}

// openTap opens a tap in a namespace, without the header of virtio.
func (w *world) openTap(ns netns.NsHandle, name string) (tap *os.File) {
	w.t.Helper()
	w.must(w.in(ns, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
		tap = os.NewFile(uintptr(fd), name)
		return err
	}))
	w.t.Cleanup(func() { _ = tap.Close() })
	return tap
}

// receive records the frames to the guest, and passes them to its stack.
func (g *guest) receive() {
	b := make([]byte, 1<<16)
	for {
		n, err := g.tap.Read(b)
		if err != nil {
			return
		}
		g.mu.Lock()
		g.seen = append(g.seen, bytes.Clone(b[:n]))
		nic := g.nic
		g.mu.Unlock()
		if nic != nil {
			_, _ = nic.Write(b[:n]) // a frame that the interface does not take is lost, as on a wire
		}
	}
}

// find returns a frame to the guest.
func (g *guest) find(which func([]byte) bool) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range g.seen {
		if which(f) {
			return f
		}
	}
	return nil
}

// send sends a frame from the guest.
func (g *guest) send(frame []byte) {
	g.w.t.Helper()
	if _, err := g.tap.Write(frame); err != nil {
		g.w.t.Fatal(err)
	}
}

// hostMAC is the hardware address of the gateway's end.
func (g *guest) hostMAC() net.HardwareAddr {
	g.w.t.Helper()
	var mac net.HardwareAddr
	g.w.must(g.w.in(g.w.gateway, func() error {
		l, err := netlink.LinkByName(network.LinkName(g.Box))
		if err == nil {
			mac = l.Attrs().HardwareAddr
		}
		return err
	}))
	return mac
}

// frame returns an Ethernet frame from the guest to the gateway.
func (g *guest) frame(kind uint16, payload []byte) []byte {
	return ether(g.hostMAC(), link.MAC(g.Box), kind, payload)
}

func ether(to, from net.HardwareAddr, kind uint16, payload []byte) []byte {
	b := append(append(bytes.Clone(to), from...), byte(kind>>8), byte(kind))
	return append(b, payload...)
}

// arp returns an ARP request.
func arp(mac net.HardwareAddr, sender, target netip.Addr) []byte {
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, mac...)
	b = append(append(b, sender.AsSlice()...), make([]byte, 6)...)
	return append(b, target.AsSlice()...)
}

// solicit returns a neighbour solicitation.
func solicit(mac net.HardwareAddr, source, target netip.Addr) []byte {
	body := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
	body = append(append(body, 1, 1), mac...)
	p := packet6(source, target, unix.IPPROTO_ICMPV6, body)
	p[7] = 255
	binary.BigEndian.PutUint16(p[42:], ^sum(p))
	return p
}

// sum is the internet checksum of an ICMPv6 packet; 0xffff if it is correct.
func sum(p []byte) uint16 {
	total := uint32(len(p) - 40 + unix.IPPROTO_ICMPV6)
	for i := 8; i < len(p); i += 2 {
		total += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

var broadcast = net.HardwareAddr{255, 255, 255, 255, 255, 255}

// The gateway answers a guest's ARP and neighbour discovery for its own addresses alone, and only from the guest's
// addresses.
func TestGuestResolvesOnlyTheGateway(t *testing.T) {
	w := newWorld(t)
	for _, inside := range []bool{false, true} {
		g := w.addGuest(policy.BoxID(fmt.Sprintf("guest-%v", inside)), 20, inside)
		mac, host := link.MAC(g.Box), g.hostMAC()
		other := netip.MustParseAddr("10.77.0.9")
		other6, linkLocal := netip.MustParseAddr("fd77::9"), netip.MustParseAddr("fe80::77")
		for i, a := range []netip.Addr{w.cfg.SinkV4, w.cfg.GatewayV4} {
			if i == 1 { // the link passes frames
				for _, bad := range [][]byte{
					ether(broadcast, mac, unix.ETH_P_ARP, arp(mac, g.V4, other)), ether(broadcast, mac, unix.ETH_P_ARP, arp(mac, g.V4, uplink4)),
					ether(broadcast, mac, unix.ETH_P_ARP, arp(mac, other, w.cfg.GatewayV4)),
					ether(broadcast, broadcast[:6], unix.ETH_P_ARP, arp(mac, g.V4, w.cfg.GatewayV4)),
					g.frame(unix.ETH_P_IPV6, solicit(mac, g.V6, other6)), g.frame(unix.ETH_P_IPV6, solicit(mac, g.V6, uplink6)),
					g.frame(unix.ETH_P_IPV6, solicit(mac, other6, w.cfg.GatewayV6)),
					g.frame(unix.ETH_P_IPV6, solicit(mac, netip.IPv6Unspecified(), w.cfg.GatewayV6)),
					ether(broadcast, mac, unix.ETH_P_ARP, arp(mac, g.V4, w.cfg.GatewayV4)[:20]),
					g.frame(unix.ETH_P_IPV6, solicit(mac, g.V6, w.cfg.GatewayV6)[:50]),
				} {
					g.send(bad)
				}
			}
			w.wait(fmt.Sprint("an answer about ", a), func() bool { // the kernel may not have noticed yet that the tap is open
				g.send(ether(broadcast, mac, unix.ETH_P_ARP, arp(mac, g.V4, a)))
				return g.find(func(f []byte) bool {
					return len(f) >= 42 && bytes.Equal(f[:6], mac) && f[21] == 2 && bytes.Equal(f[22:28], host) && bytes.Equal(f[28:32], a.AsSlice()) && bytes.Equal(f[38:42], g.V4.AsSlice())
				}) != nil
			})
		}
		for _, from := range []netip.Addr{g.V6, linkLocal} {
			for _, a := range []netip.Addr{w.cfg.SinkV6, link.RouterV6, w.cfg.GatewayV6} {
				w.wait(fmt.Sprint("an answer about ", a), func() bool {
					g.send(g.frame(unix.ETH_P_IPV6, solicit(mac, from, a)))
					return g.find(func(f []byte) bool {
						return len(f) == 86 && f[54] == 136 && bytes.Equal(f[22:38], a.AsSlice()) && bytes.Equal(f[38:54], from.AsSlice()) &&
							bytes.Equal(f[62:78], a.AsSlice()) && bytes.Equal(f[80:], host) && sum(f[14:]) == 0xffff
					}) != nil
				})
			}
		}
		// The answers arrive in the order of the requests.
		if g.find(func(f []byte) bool {
			return f[13] == 6 && !bytes.Equal(f[28:32], w.cfg.GatewayV4.AsSlice()) && !bytes.Equal(f[28:32], w.cfg.SinkV4.AsSlice()) ||
				len(f) > 80 && f[54] == 136 && (bytes.Equal(f[62:78], other6.AsSlice()) || bytes.Equal(f[62:78], uplink6.AsSlice()))
		}) != nil {
			t.Error("an address of another was resolved")
		}
		if g.find(func(f []byte) bool {
			return len(f) >= 42 && f[13] == 6 && bytes.Equal(f[38:42], other.AsSlice()) || len(f) > 54 && f[54] == 136 && !bytes.Equal(f[38:54], g.V6.AsSlice()) && !bytes.Equal(f[38:54], linkLocal.AsSlice())
		}) != nil {
			t.Error("the address of another was answered")
		}
		w.must(w.fw.RemoveBox(context.Background(), g.Box))
	}
}

// A guest sends only from its own addresses, untagged, and within the MTU of the link.
func TestGuestCannotForgeFrames(t *testing.T) {
	w := newWorld(t)
	for _, inside := range []bool{false, true} {
		g := w.addGuest(policy.BoxID(fmt.Sprintf("guest-%v", inside)), 20, inside)
		w.apply(g.Box, allow("198.51.100.0/24", "2001:db8:2::/48"))
		mac, host := link.MAC(g.Box), g.hostMAC()
		udp := func(n int) []byte {
			b := append([]byte{0x10, 0, 0x10, 1, 0, 0, 0, 0}, make([]byte, n)...)
			binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
			return b
		}
		to := netip.MustParseAddr("198.51.100.60")
		to6 := netip.MustParseAddr("2001:db8:2::60")
		fine := func(to netip.Addr) []byte { return checked(packet4(g.V4, to, unix.IPPROTO_UDP, nil, 0, udp(8))) }
		tagged := append([]byte{0, 5, 8, 0}, fine(to)...)
		stranger := net.HardwareAddr{2, 1, 1, 1, 1, 1}
		dhcp := udp(300)
		copy(dhcp, []byte{0, 67, 0, 68})
		passes := func(a netip.Addr) {
			t.Helper()
			w.wait("a packet of its own arrives", func() bool {
				g.send(g.frame(unix.ETH_P_IP, fine(a)))
				return w.wire.find(func(p seenPacket) bool { return p.dst == a })
			})
		}
		passes(netip.MustParseAddr("198.51.100.62")) // from now on the kernel takes frames from the tap
		for _, f := range map[string][]byte{
			"another's hardware address":       ether(host, stranger, unix.ETH_P_IP, fine(to)),
			"another destination":              ether(stranger, mac, unix.ETH_P_IP, fine(to)),
			"an address of another box":        g.frame(unix.ETH_P_IP, checked(packet4(netip.MustParseAddr("10.77.0.10"), to, unix.IPPROTO_UDP, nil, 0, udp(8)))),
			"an address of the world":          g.frame(unix.ETH_P_IP, checked(packet4(uplink4, to, unix.IPPROTO_UDP, nil, 0, udp(8)))),
			"an IPv6 address of another":       g.frame(unix.ETH_P_IPV6, packet6(netip.MustParseAddr("fd77::10"), to6, unix.IPPROTO_UDP, udp(8))),
			"a link-local address":             g.frame(unix.ETH_P_IPV6, packet6(netip.MustParseAddr("fe80::1"), to6, unix.IPPROTO_UDP, udp(8))),
			"a VLAN tag":                       g.frame(unix.ETH_P_8021Q, tagged),
			"a priority tag":                   g.frame(unix.ETH_P_8021Q, append([]byte{0, 0, 8, 0}, fine(to)...)),
			"a service tag":                    g.frame(unix.ETH_P_8021AD, tagged),
			"a jumbo frame":                    g.frame(unix.ETH_P_IP, checked(packet4(g.V4, to, unix.IPPROTO_UDP, nil, 0, udp(3000)))),
			"a fragment":                       g.frame(unix.ETH_P_IP, checked(packet4(g.V4, to, unix.IPPROTO_UDP, nil, 0x2000, udp(8)))),
			"an IPv6 fragment":                 g.frame(unix.ETH_P_IPV6, packet6(g.V6, to6, unix.IPPROTO_FRAGMENT, append([]byte{17, 0, 0, 1, 0, 0, 0, 9}, udp(8)...))),
			"an own DHCP server":               ether(broadcast, mac, unix.ETH_P_IP, checked(packet4(g.V4, netip.MustParseAddr("255.255.255.255"), unix.IPPROTO_UDP, nil, 0, dhcp))),
			"a router advertisement":           g.frame(unix.ETH_P_IPV6, packet6(netip.MustParseAddr("fe80::7"), netip.MustParseAddr("ff02::1"), unix.IPPROTO_ICMPV6, append([]byte{134, 0}, make([]byte, 14)...))),
			"another protocol (LLDP)":          ether(net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0xe}, mac, 0x88cc, make([]byte, 60)),
			"another protocol (PPPoE)":         g.frame(0x8864, append([]byte{0x11, 0, 0, 1, 0, 40, 0, 0x21}, fine(to)...)),
			"another protocol (MPLS)":          g.frame(0x8847, append([]byte{0, 0, 1, 64}, fine(to)...)),
			"an IPv6 packet in an IPv4 frame":  g.frame(unix.ETH_P_IP, packet6(g.V6, to6, unix.IPPROTO_UDP, udp(8))),
			"a frame that is only a header":    g.frame(unix.ETH_P_IP, nil),
			"a frame that ends in its address": g.frame(unix.ETH_P_IPV6, packet6(g.V6, to6, unix.IPPROTO_UDP, nil)[:30]),
		} {
			g.send(f)
		}
		passes(netip.MustParseAddr("198.51.100.61"))
		if w.wire.find(func(p seenPacket) bool {
			return p.dst == to || p.dst == to6 || p.dst.Is4() && p.dst.As4()[0] == 255 || p.dst.IsMulticast() && p.src.Is4()
		}) {
			t.Error("a forged packet arrived outside")
		}
		forged := g.frame(unix.ETH_P_IP, checked(packet4(uplink4, to, unix.IPPROTO_UDP, nil, 0, udp(8))))
		w.wait("a forged source is in the log", func() bool {
			g.send(forged) // the log has few of many refusals a second
			_, ok := w.events.find(func(e audit.Event) bool { return e.Box == g.Box && e.Reason == name.ReasonSpoofed })
			return ok
		})
		w.must(w.fw.RemoveBox(context.Background(), g.Box))
	}
}

// checked sets the checksum of an IPv4 header.
func checked(p []byte) []byte {
	total := uint32(0)
	for i := 0; i < int(p[0]&15)*4; i += 2 {
		total += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(total))
	return p
}

// join connects the guest to a stack of the kernel: a namespace with an interface like that of a virtual machine, configured
// as the argument ip= of the kernel does.
func (g *guest) join() {
	w := g.w
	w.t.Helper()
	g.stack = newNamespace(w.t)
	inside, err := netlink.NewHandleAt(g.stack)
	w.must(err)
	defer inside.Close()
	w.must(w.in(g.stack, func() error {
		return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, Mode: netlink.TUNTAP_MODE_TAP})
	}))
	nic := w.openTap(g.stack, "eth0")
	l, err := inside.LinkByName("eth0")
	w.must(err)
	w.must(inside.LinkSetHardwareAddr(l, link.MAC(g.Box)))
	w.addresses(inside, "eth0", netip.PrefixFrom(g.V4, 16).String(), netip.PrefixFrom(g.V6, 64).String())
	for _, via := range []netip.Addr{w.cfg.GatewayV4, w.cfg.GatewayV6} {
		w.must(inside.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: via.AsSlice(), Dst: network.IPNet(netip.PrefixFrom(via, 0).Masked())}))
	}
	g.mu.Lock()
	g.nic = nic
	g.mu.Unlock()
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, err := nic.Read(b)
			if err != nil {
				return
			}
			_, _ = g.tap.Write(b[:n])
		}
	}()
}

// The connections of a guest pass a restart of the gateway, and end with its policy.
func TestGuestKeepsItsConnections(t *testing.T) {
	w := newWorld(t)
	for _, inside := range []bool{false, true} {
		g := w.addGuest(policy.BoxID(fmt.Sprintf("guest-%v", inside)), 20, inside)
		w.apply(g.Box, allow("198.51.100.0/24", "2001:db8:2::/48"))
		g.join()
		port := w.serveTCP(w.outside, "[::]:0", nil).Port()
		for _, a := range []netip.Addr{outside4, outside6} {
			server := netip.AddrPortFrom(a, port)
			c, err := w.dial(g.stack, "tcp", server)
			w.must(err)
			if _, err := ask(c, "before"); err != nil {
				t.Fatal(err)
			}
			w.must(w.fw.Close())
			w.must(w.in(g.stack, func() error { return flushNeighbours("eth0") })) // a guest asks again while the gateway is down
			if _, err := ask(c, "while it is down"); err != nil {
				t.Error("without the gateway:", err)
			}
			w.open()
			w.must(w.fw.AddBox(context.Background(), g.Attachment))
			w.apply(g.Box, allow("198.51.100.0/24", "2001:db8:2::/48"))
			w.must(w.fw.Prune(context.Background()))
			if _, err := ask(c, "after"); err != nil {
				t.Error("after the restart:", err)
			}
			w.apply(g.Box, allow())
			if answer, err := ask(c, "cut"); err == nil {
				t.Errorf("after the policy was tightened: %q", answer)
			}
			w.apply(g.Box, allow("198.51.100.0/24", "2001:db8:2::/48"))
		}
		w.must(w.fw.RemoveBox(context.Background(), g.Box))
		for _, ns := range []netns.NsHandle{w.gateway, w.boxNS[g.Box]} { // also while a VMM has it open
			w.must(w.in(ns, func() error {
				if _, err := netlink.LinkByName(g.Tap.Name); !errors.As(err, new(netlink.LinkNotFoundError)) {
					t.Errorf("the tap of a removed box: %v", err)
				}
				return nil
			}))
		}
		w.must(w.fw.CheckForeign(g.NetNS)) // the namespace can be attached again
	}
}

// flushNeighbours makes a stack forget the neighbours that it has learned.
func flushNeighbours(link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	all, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_ALL)
	for _, n := range all {
		if n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) == 0 {
			err = errors.Join(err, netlink.NeighDel(&n))
		}
	}
	return err
}

// A tap is taken over only if it is in no use. Only its owner can open it.
func TestTapsInUseAreRefused(t *testing.T) {
	w := newWorld(t)
	w.boxNS["one"] = newNamespace(t)
	attach := func(tap string, owner int) error {
		a := Attachment{Box: "one", NetNS: fmt.Sprintf("/proc/self/fd/%d", int(w.boxNS["one"])), V4: netip.MustParseAddr("10.77.0.30"),
			V6: netip.MustParseAddr("fd77::30"), GuestStack: true, Tap: &Tap{Name: tap, Owner: owner}}
		return w.fw.AddBox(context.Background(), a)
	}
	gw, err := netlink.NewHandleAt(w.gateway)
	w.must(err)
	defer gw.Close()
	add := func(name string) netlink.Link {
		w.must(w.in(w.gateway, func() error {
			return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP})
		}))
		l, err := gw.LinkByName(name)
		w.must(err)
		return l
	}
	taken := []string{"addressed", "open", "up0"}
	if err := gw.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}); err == nil { // if the kernel has bridges
		bridge, err := gw.LinkByName("bridge")
		w.must(err)
		w.must(gw.LinkSetMaster(add("bridged"), bridge))
		taken = append(taken, "bridge", "bridged")
	}
	below := add("below").Attrs().Index
	if err := gw.LinkAdd(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "above", ParentIndex: below}}); err == nil {
		taken = append(taken, "below")
	}
	w.addresses(gw, add("addressed").Attrs().Name, "192.0.2.1/24")
	w.must(gw.LinkSetUp(add("open")))
	w.openTap(w.gateway, "open")
	for _, name := range taken {
		if err := attach(name, 0); !errors.Is(err, link.ErrTapInUse) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := gw.LinkByName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []string{"", "lo", "eth0", "../x", "sixteen-letters-", network.LinkName("two"), "-x", "a b"} {
		if err := attach(bad, 0); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
	add("free")
	w.must(attach("free", 1000))
	l, err := gw.LinkByName("free")
	w.must(err)
	tap, ok := l.(*netlink.Tuntap)
	if !ok || tap.Owner != 1000 || tap.NonPersist || l.Attrs().Group != network.LinkGroup || l.Attrs().Name != network.LinkName("one") {
		t.Errorf("the tap: %+v", l)
	}
}

// A VMM can give away the tap that it has open, and delete it. The gateway makes a deleted one again, with filter and owner, and gives a
// closed one back to its owner.
func TestTapThatItsMachineChanges(t *testing.T) {
	w := newWorld(t)
	w.watch()
	g := w.addGuest("guest", 20, false)
	gw, err := netlink.NewHandleAt(w.gateway)
	w.must(err)
	defer gw.Close()
	owner := func() int {
		if l, err := gw.LinkByName(g.Tap.Name); err == nil {
			if tap, ok := l.(*netlink.Tuntap); ok {
				return int(tap.Owner)
			}
		}
		return -1
	}
	w.must(unix.IoctlSetInt(int(g.tap.Fd()), unix.TUNSETOWNER, 1234))
	w.must(w.fw.AddBox(context.Background(), g.Attachment))
	if now := owner(); now != 1234 {
		t.Errorf("the owner of an open tap: %d", now)
	}
	w.must(g.tap.Close())
	w.must(w.fw.AddBox(context.Background(), g.Attachment))
	if now := owner(); now != 0 {
		t.Errorf("the owner of a closed tap: %d", now)
	}
	w.deletes(g, gw)
	inside := w.addGuest("inside", 21, true)
	apart, err := netlink.NewHandleAt(w.boxNS[inside.Box])
	w.must(err)
	defer apart.Close()
	w.must(inside.tap.Close())
	for range 2 { // also the one that was made again
		w.deletes(inside, apart)
	}
	w.apply(inside.Box, allow("198.51.100.0/24", "2001:db8:2::/48"))
	inside.tap = w.openTap(w.boxNS[inside.Box], inside.Tap.Name)
	go inside.receive()
	w.wait("a frame passes the tap that was made again", func() bool {
		inside.send(ether(broadcast, link.MAC(inside.Box), unix.ETH_P_ARP, arp(link.MAC(inside.Box), inside.V4, w.cfg.GatewayV4)))
		return inside.find(func(f []byte) bool { return f[13] == 6 }) != nil
	})
	w.must(w.fw.RemoveBox(context.Background(), inside.Box))
	if _, err := apart.LinkByName(inside.Tap.Name); !errors.As(err, new(netlink.LinkNotFoundError)) {
		t.Errorf("the tap of a removed box: %v", err)
	}
}

// deletes makes a VMM delete its tap, and waits until there is another. The test has closed the tap.
func (w *world) deletes(g *guest, h *netlink.Handle) {
	w.t.Helper()
	ns := w.gateway
	if g.Tap.Inside {
		ns = w.boxNS[g.Box]
	}
	before, err := h.LinkByName(g.Tap.Name)
	w.must(err)
	g.tap = w.openTap(ns, g.Tap.Name)
	w.must(unix.IoctlSetInt(int(g.tap.Fd()), unix.TUNSETPERSIST, 0))
	w.must(g.tap.Close())
	w.wait("the tap is there again", func() bool {
		l, err := h.LinkByName(g.Tap.Name)
		return err == nil && l.Attrs().Index != before.Attrs().Index && l.Attrs().RawFlags&unix.IFF_UP != 0 &&
			(g.Tap.Inside || w.fw.links.GateIntact(l.Attrs().Index))
	})
}

// discover returns the frame of a DHCP client that looks for a server.
func (g *guest) discover(modifiers ...dhcpv4.Modifier) []byte {
	g.w.t.Helper()
	mac := link.MAC(g.Box)
	m, err := dhcpv4.NewDiscovery(mac, modifiers...)
	g.w.must(err)
	body := m.ToBytes()
	udp := binary.BigEndian.AppendUint16([]byte{0, 68, 0, 67}, uint16(8+len(body)))
	p := packet4(netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255"), unix.IPPROTO_UDP, nil, 0, append(append(udp, 0, 0), body...))
	return ether(broadcast, mac, unix.ETH_P_IP, checked(p))
}

// offers returns the answers of DHCP that the guest has got.
func (g *guest) offers() (all []*dhcpv4.DHCPv4) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range g.seen {
		if len(f) > 42 && f[12] == 8 && f[13] == 0 && f[23] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(f[34:]) == 67 {
			if m, err := dhcpv4.FromBytes(f[42:]); err == nil {
				all = append(all, m)
			}
		}
	}
	return all
}

// A guest gets its addresses and router without our hands in it; others get no answer, and a flood few.
func TestGuestConfiguresItself(t *testing.T) {
	w := newWorld(t)
	for _, inside := range []bool{false, true} {
		g := w.addGuest(policy.BoxID(fmt.Sprintf("guest-%v", inside)), 20, inside)
		w.apply(g.Box, allow("198.51.100.0/24", "2001:db8:2::/48"))
		w.wait("an offer", func() bool {
			g.send(g.discover())
			return len(g.offers()) > 0
		})
		if m := g.offers()[0]; !m.YourIPAddr.Equal(g.V4.AsSlice()) || !m.Router()[0].Equal(w.cfg.GatewayV4.AsSlice()) {
			t.Errorf("offered: %v", m.Summary())
		}
		g.join() // its kernel solicits a router
		w.wait("the router of the advertisement", func() bool {
			found := false
			w.must(w.in(g.stack, func() error {
				routes, err := netlink.RouteList(nil, netlink.FAMILY_V6)
				for _, r := range routes {
					found = found || r.Gw.Equal(link.RouterV6.AsSlice())
				}
				return err
			}))
			return found
		})
		before, begun := len(g.offers()), time.Now()
		for range 5000 {
			g.send(g.discover())
		}
		if _, err := w.exchange(g.stack, "tcp", netip.AddrPortFrom(outside4, w.serveTCP(w.outside, "[::]:0", nil).Port()), "during the flood"); err != nil {
			t.Errorf("during the flood: %v", err)
		}
		if n, most := len(g.offers())-before, 2*(20+20*int(time.Since(begun).Seconds()+1)); n > most {
			t.Errorf("%d answers to a flood, more than %d", n, most)
		}
		w.must(w.fw.RemoveBox(context.Background(), g.Box))
	}
	g := w.addGuest("by-hand", 21, false)
	if w.fw.guests[g.Box] == nil || len(w.fw.guests) != 1 {
		t.Errorf("servers: %v", w.fw.guests)
	}
	g.Tap.NoDHCP = true
	w.must(w.fw.AddBox(context.Background(), g.Attachment))
	if len(w.fw.guests) != 0 {
		t.Errorf("servers of boxes without DHCP: %v", w.fw.guests)
	}
}
