package machines

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/e2e/machines/orders"
	"boxgate/policy/name"
)

var (
	broadcast = net.HardwareAddr{255, 255, 255, 255, 255, 255}
	stranger  = net.HardwareAddr{2, 1, 1, 1, 1, 1}
	other     = [2]netip.Addr{netip.MustParseAddr("10.200.77.77"), netip.MustParseAddr("fd42:b0c5::7777")} // of no box
)

// ends returns the hardware addresses of the machine and of the gateway's end of the link.
func (m *machine) ends() (own, host net.HardwareAddr) {
	m.T.Helper()
	own, err := net.ParseMAC(m.tap.MAC)
	if err != nil {
		m.T.Fatal(err)
	}
	if m.host != nil {
		return own, m.host
	}
	m.forget()
	m.send(orders.Order{}, ether(broadcast, own, unix.ETH_P_ARP, arp(1, own, m.tap.Addresses[0].Addr(), broadcast, m.tap.Gateways[0])))
	m.Until("the gateway answers ARP", func() bool {
		for _, f := range m.must(orders.Order{Kind: orders.Heard}).Frames {
			if len(f) >= 42 && binary.BigEndian.Uint16(f[12:]) == unix.ETH_P_ARP && bytes.Equal(f[28:32], m.tap.Gateways[0].AsSlice()) {
				m.host = bytes.Clone(f[22:28])
			}
		}
		return m.host != nil
	})
	return own, m.host
}

func ether(to, from net.HardwareAddr, kind uint16, payload []byte) []byte {
	b := append(append(bytes.Clone(to), from...), byte(kind>>8), byte(kind))
	return append(b, payload...)
}

// arp returns a message of ARP: 1 is a request, 2 a reply.
func arp(op byte, mac net.HardwareAddr, sender netip.Addr, to net.HardwareAddr, target netip.Addr) []byte {
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, op}, mac...)
	b = append(append(b, sender.AsSlice()...), to...)
	return append(b, target.AsSlice()...)
}

// send makes the machine send frames.
func (m *machine) send(o orders.Order, frames ...[]byte) {
	m.T.Helper()
	o.Kind, o.Frames = orders.Send, frames
	m.must(o)
}

// forget drops the frames that the machine has received.
func (m *machine) forget() { m.must(orders.Order{Kind: orders.Heard}) }

// datagram returns a datagram of the machine to one of the addresses that its policy allows.
func (m *machine) datagram(to netip.Addr, text string) []byte {
	from := m.tap.Addresses[0].Addr()
	if to.Is6() {
		from = m.tap.Addresses[1].Addr()
	}
	return harness.UDPPacket(netip.AddrPortFrom(from, 4000), netip.AddrPortFrom(to, 4001), text)
}

// arrived counts the packets that have reached an address.
func (m *machine) arrived(to netip.Addr) (n int) {
	for _, p := range m.Net.Packets(to.String()) {
		n += p.Count
	}
	return n
}

// settles returns when everything that the machine has sent is judged: frames of one interface stay in order. Several queues do not
// keep it, so a frame goes through each.
func (m *machine) settles() {
	m.T.Helper()
	own, host := m.ends()
	for _, to := range witness {
		for range 4 * m.queues {
			before := m.arrived(to)
			m.Until("a packet of the machine's own arrives", func() bool {
				m.send(orders.Order{}, ether(host, own, etherType(to), m.datagram(to, "own")))
				return m.arrived(to) > before
			})
		}
	}
	m.AwaitCounted()
}

func etherType(a netip.Addr) uint16 {
	if a.Is4() {
		return unix.ETH_P_IP
	}
	return unix.ETH_P_IPV6
}

// forgesFrames: frames that pretend to be of others, have tags, are too long or in fragments do not leave, though the policy
// allows their destination.
func (m *machine) forgesFrames() {
	m.T.Helper()
	own, host := m.ends()
	m.settles()
	gateway4, gateway6 := m.Net.GatewayAddrs()
	for i, to := range target {
		kind := etherType(to)
		fine := m.datagram(to, "forged")
		from := func(a netip.Addr) []byte {
			return ether(host, own, kind, harness.UDPPacket(netip.AddrPortFrom(a, 4000), netip.AddrPortFrom(to, 4001), "forged"))
		}
		frames := [][]byte{
			ether(host, stranger, kind, fine), ether(host, host, kind, fine), ether(stranger, own, kind, fine),
			from(other[i]), from(m.tap.Gateways[i]), from([]netip.Addr{gateway4, gateway6}[i]), from(witness[i]),
			ether(host, own, unix.ETH_P_8021Q, append([]byte{0, 5, byte(kind >> 8), byte(kind)}, fine...)),
			ether(host, own, unix.ETH_P_8021Q, append([]byte{0xe0, 0, byte(kind >> 8), byte(kind)}, fine...)),
			ether(host, own, unix.ETH_P_8021AD, append([]byte{0, 5, 0x81, 0, 0, 6, byte(kind >> 8), byte(kind)}, fine...)),
			ether(host, own, unix.ETH_P_MPLS_UC, append([]byte{0, 1, 1, 64}, fine...)),
			ether(host, own, unix.ETH_P_PPP_SES, append([]byte{0x11, 0, 0, 1, 0, byte(len(fine) + 2), 0, byte(0x21 + 0x36*i)}, fine...)),
		}
		whole := m.datagram(to, strings.Repeat("fragment", 100))
		for _, part := range fragments(whole) {
			frames = append(frames, ether(host, own, kind, part))
		}
		m.send(orders.Order{}, frames...)
		m.send(orders.Order{MTU: 9000}, ether(host, own, kind, m.datagram(to, strings.Repeat("jumbo", 600))))
	}
	// A DHCP server, and packets to the host and to no address.
	all := netip.MustParseAddr("255.255.255.255")
	offer := harness.UDPPacket(netip.AddrPortFrom(m.tap.Addresses[0].Addr(), 67), netip.AddrPortFrom(all, 68), strings.Repeat("\x02", 300))
	m.send(orders.Order{}, ether(broadcast, own, unix.ETH_P_IP, offer), ether(host, own, unix.ETH_P_IP, m.datagram(netip.MustParseAddr("169.254.169.254"), "metadata")))
	m.settles()
	m.Untouched(target[0], target[1], netip.MustParseAddr("169.254.169.254"), all)
	m.onlyOwn()
	m.Event(m.id, func(e audit.Event) bool { return e.Reason == name.ReasonSpoofed })
}

// fragments returns the two halves of a packet.
func fragments(p []byte) [2][]byte {
	if p[0]>>4 == 4 {
		body, head := p[20:], p[:20]
		src, dst := netip.AddrFrom4([4]byte(head[12:])), netip.AddrFrom4([4]byte(head[16:]))
		return [2][]byte{harness.IPv4Packet(src, dst, head[9], nil, 0x2000, body[:400]), harness.IPv4Packet(src, dst, head[9], nil, 400/8, body[400:])}
	}
	body, src, dst := p[40:], netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:]))
	part := func(offset byte, more byte, b []byte) []byte {
		return harness.IPPacket(src, dst, unix.IPPROTO_FRAGMENT, append([]byte{p[6], 0, offset >> 5, offset<<3 | more, 0, 0, 0, 9}, b...))
	}
	return [2][]byte{part(0, 1, body[:400]), part(400/8, 0, body[400:])}
}

// onlyOwn asserts that no packet has left with another source than the gateway's.
func (m *machine) onlyOwn() {
	m.T.Helper()
	gateway4, gateway6 := m.Net.GatewayAddrs()
	for _, p := range m.Net.Packets("") {
		if p.Src != gateway4 && p.Src != gateway6 {
			m.T.Errorf("a packet of another source arrived: %+v", p)
		}
	}
}

// forgesNeighbours: claims by ARP and neighbour discovery, and router advertisements, change neither neighbours nor routes of the
// host. Questions about others are not answered.
func (m *machine) forgesNeighbours() {
	m.T.Helper()
	own, host := m.ends()
	m.settles()
	before := m.hostState()
	m.forget()
	gateway4, gateway6 := m.Net.GatewayAddrs()
	for _, claimed := range []netip.Addr{m.tap.Gateways[0], gateway4, other[0], netip.MustParseAddr("192.0.2.253")} {
		for _, op := range []byte{1, 2} {
			m.send(orders.Order{}, ether(broadcast, own, unix.ETH_P_ARP, arp(op, own, claimed, broadcast, claimed)),
				ether(host, own, unix.ETH_P_ARP, arp(op, own, claimed, host, m.tap.Gateways[0])))
		}
		if claimed != m.tap.Gateways[0] {
			m.send(orders.Order{}, ether(broadcast, own, unix.ETH_P_ARP, arp(1, own, m.tap.Addresses[0].Addr(), broadcast, claimed)))
		}
	}
	for _, claimed := range []netip.Addr{m.tap.Gateways[1], gateway6, other[1]} {
		for kind := byte(133); kind <= 137; kind++ {
			for _, src := range []netip.Addr{m.tap.Addresses[1].Addr(), claimed, netip.MustParseAddr("fe80::1"), netip.IPv6Unspecified()} {
				if kind == 135 && claimed == m.tap.Gateways[1] && src == m.tap.Addresses[1].Addr() {
					continue // its own question for the gateway
				}
				for _, dst := range []netip.Addr{m.tap.Gateways[1], netip.MustParseAddr("ff02::1")} {
					body := append(make([]byte, 4), claimed.AsSlice()...)
					b := harness.ICMPPacket(src, dst, 0, kind, 0, append(append(body, 2, 1), own...))
					b[7] = 255
					m.send(orders.Order{}, ether(host, own, unix.ETH_P_IPV6, b))
				}
			}
		}
	}
	m.settles()
	if after := m.hostState(); after != before {
		m.T.Errorf("the host's neighbours and routes changed from\n%s\nto\n%s", before, after)
	}
	for _, f := range m.must(orders.Order{Kind: orders.Heard}).Frames {
		switch kind := binary.BigEndian.Uint16(f[12:]); {
		case kind == unix.ETH_P_ARP && !bytes.Equal(f[28:32], m.tap.Gateways[0].AsSlice()),
			kind == unix.ETH_P_IPV6 && len(f) >= 78 && f[20] == unix.IPPROTO_ICMPV6 && f[54] == 136 &&
				!slices.Contains([]netip.Addr{m.tap.Gateways[1], netip.MustParseAddr("fe80::1")}, netip.AddrFrom16([16]byte(f[62:78]))):
			m.T.Errorf("an answer about another: %x", f)
		}
	}
}

// hostState returns the neighbours and routes of the gateway's host.
func (m *machine) hostState() string {
	m.T.Helper()
	var kept []string
	for _, args := range [][]string{{"neigh", "show", "nud", "all"}, {"-6", "route", "show", "table", "all"}, {"route", "show", "table", "all"}} {
		out, err := m.Net.Gateway().Run(m.T.Context(), "ip", args...)
		if err != nil {
			m.T.Fatal(err, out)
		}
		for line := range strings.Lines(out) {
			if !strings.Contains(line, "up0") && !strings.Contains(line, "NOARP") { // its entries change with time
				kept = append(kept, line)
			}
		}
	}
	slices.Sort(kept)
	return strings.Join(kept, "")
}

// computeChecksums makes the uplink compute checksums itself before it sends, as on a network card without offloads: it stores
// them where the header of virtio asks for.
func computeChecksums(w *harness.World) {
	w.T.Helper()
	if err := w.Net.Gateway().Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		off := [2]uint32{unix.ETHTOOL_STXCSUM, 0}
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&off)}
		copy(request.name[:], "up0")
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errno
		}
		return nil
	}); err != nil {
		w.T.Fatal(err)
	}
}

// forgesChecksums: a checksum that the host is to compute changes no address and no port.
func (m *machine) forgesChecksums() {
	m.T.Helper()
	own, host := m.ends()
	for i, to := range target {
		head, transport := 14, 34
		if i == 1 {
			transport = 54
		}
		frame := ether(host, own, etherType(to), m.datagram(to, "unfinished"))
		unfinished := func(start, field int) []byte {
			b := []byte{1, 0, 0, 0, 0, 0} // VIRTIO_NET_HDR_F_NEEDS_CSUM
			b = binary.LittleEndian.AppendUint16(b, uint16(start))
			return append(binary.LittleEndian.AppendUint16(b, uint16(field-start)), frame...)
		}
		before := m.arrived(to)
		m.Until("a packet with an unfinished checksum arrives", func() bool {
			m.send(orders.Order{Header: true}, unfinished(transport, transport+6))
			return m.arrived(to) > before
		})
		for _, start := range []int{head, head + 6, transport} {
			for field := start; field < transport+4; field += 2 {
				m.send(orders.Order{Header: true}, unfinished(start, field))
			}
		}
	}
	m.settles()
	m.onlyOwn()
	known := append(append([]netip.Addr{netip.MustParseAddr("198.51.100.250")}, witness[:]...), target[:]...)
	for _, host := range []string{"dns.example.com", "api.example.com", "www.example.com"} {
		known = append(known, m.V4(host), m.V6(host))
	}
	for _, p := range m.Net.Packets("") {
		if !slices.Contains(known, p.Dst) || slices.Contains(target[:], p.Dst) && p.Port != 4001 {
			m.T.Errorf("a packet to another address or port arrived: %+v", p)
		}
	}
	m.Net.Renew() // the targets are to be untouched in the next machine
}
