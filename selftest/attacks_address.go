package selftest

import (
	"crypto/rand"
	"net/netip"

	"golang.org/x/sys/unix"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/selftest/packet"
	"boxgate/selftest/probe"
)

// special are ranges that no policy opens. Each is attacked at a random address, or at the address itself.
var special = []struct {
	what, prefix string
	frame        bool // sent as a frame, because no socket would send there
	unlogged     bool // the kernel drops such packets before any rule sees them
}{
	{"cloud metadata", "169.254.169.254/32", false, false},
	{"cloud metadata (host agent)", "168.63.129.16/32", false, false},
	{"link-local", "169.254.0.0/16", false, false},
	{"private 10/8", "10.0.0.0/8", false, false},
	{"private 172.16/12", "172.16.0.0/12", false, false},
	{"private 192.168/16", "192.168.0.0/16", false, false},
	{"shared address space", "100.64.0.0/10", false, false},
	{"IETF protocol assignments", "192.0.0.0/24", false, false},
	{"documentation", "203.0.113.0/24", false, false},
	{"benchmarking", "198.18.0.0/15", false, false},
	{"this network", "0.0.0.0/32", true, false},
	{"loopback from outside", "127.0.0.1/32", true, false},
	{"multicast", "224.0.0.0/8", true, false},
	{"reserved", "240.0.0.0/8", true, false},
	{"broadcast", "255.255.255.255/32", true, false},

	{"cloud metadata", "fd00:ec2::254/128", false, false},
	{"metadata inside NAT64", "64:ff9b::a9fe:a9fe/128", false, false},
	{"private inside NAT64", "64:ff9b::10.0.0.0/104", false, false},
	{"local-use NAT64", "64:ff9b:1::/48", false, false},
	{"metadata inside 6to4", "2002:a9fe:a9fe::/48", false, false},
	{"Teredo", "2001::/32", false, false},
	{"unique local", "fd00::/8", false, false},
	{"site-local", "fec0::/10", false, false},
	{"documentation", "2001:db8::/32", false, false},
	{"discard", "100::/64", false, false},
	{"segment routing", "5f00::/16", false, false},
	{"metadata inside IPv4-compatible", "::a9fe:a9fe/128", true, false},
	{"metadata inside IPv4-translated", "::ffff:0:a9fe:a9fe/128", true, false},
	{"link-local", "fe80::1/128", true, false},
	{"multicast", "ff02::1/128", true, false},
	{"unspecified", "::/128", true, false},
	{"metadata inside IPv4-mapped", "::ffff:a9fe:a9fe/128", true, false},
	{"loopback from outside", "::1/128", true, true},
}

// specialPort is the port of metadata services.
const specialPort = 80

// specialAddresses adds attacks on the protected ranges.
func (b *builder) specialAddresses(s *side) {
	for _, r := range special {
		prefix := netip.MustParsePrefix(r.prefix)
		if prefix.Addr().Is4() != s.box.Is4() {
			continue
		}
		to := netip.AddrPortFrom(randomIn(prefix), specialPort)
		b.add(s, "protected addresses", r.what, to.String(), func(a *attack) {
			proto := policy.TCP
			a.send(connect(to, httpRequest("GET", "/", to.String(), a.task.Token)))
			if r.frame {
				proto = policy.UDP
				a.send(b.udpFrame(s, to, a.task.Token))
			}
			// Multicast, broadcast and loopback are refused as destinations of the host first.
			b.expectDenialAt(a, proto, to, name.ReasonHostPort)
			switch {
			case a.Verdict == Skipped:
			case a.reasons[0] == name.ReasonProtectedRange:
				a.matches = inKernel(proto, to)
			default: // exempted by the operator, so refused like any other address
				a.reasons, a.judge = concat(a.reasons, unnamed...), b.refusedByProxy
			}
			a.exclusive = !prefix.IsSingleIP()
			if r.unlogged && a.Verdict != Skipped {
				a.reasons, a.Expected = nil, "dropped"
			}
		})
	}
}

// otherAddresses adds attacks on addresses that no list of the policy contains.
func (b *builder) otherAddresses(s *side) {
	const group = "addresses not allowed"
	tcp := func(name string, port uint16, also ...name.Reason) {
		to := netip.AddrPortFrom(s.stranger(), port)
		b.add(s, group, name, to.String(), func(a *attack) {
			a.send(connect(to, append([]byte("boxgate selftest "), a.task.Token...)))
			b.expectDenialAt(a, policy.TCP, to, concat(unnamed, also...)...)
			a.exclusive, a.judge = true, b.refusedByProxy
		})
	}
	tcp("TCP to any port", 4242)
	tcp("SSH", 22)
	tcp("raw bytes on 443", 443)
	tcp("raw bytes on 80", 80, name.ReasonBadRequest)
	tcp("DNS over TLS", 853)
	udp := func(n string, port uint16) {
		to := netip.AddrPortFrom(s.stranger(), port)
		b.add(s, group, n, to.String(), func(a *attack) {
			a.send(probe.Task{Kind: probe.UDP, To: to, Data: [][]byte{a.task.Token}})
			b.expectDenialAt(a, policy.UDP, to, name.ReasonProtocol)
			a.exclusive = true
		})
	}
	udp("UDP to any port", 4242)
	udp("QUIC", 443)
	to := s.stranger()
	b.add(s, group, "ping with a payload", to.String(), func(a *attack) {
		ping := packet.IP(s.box, to, packet.ICMPProtocol(to), packet.Echo(s.box, to, framePort, a.task.Token))
		a.send(b.frame(s, ping))
		b.expectDenialAt(a, policy.ICMP, netip.AddrPortFrom(to, 0))
		a.exclusive = true
	})
}

// randomIn returns a random address of a prefix.
func randomIn(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	random := make([]byte, len(bytes))
	_, _ = rand.Read(random) // never fails (crypto/rand)
	for i := range bytes {
		keep := min(8, max(0, p.Bits()-8*i))
		bytes[i] |= random[i] & (0xff >> keep)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

// strangers returns random addresses of a public resolver's network. Anyone may send there, and few of its addresses
// answer. Each address is returned once.
func strangers(network string) func() netip.Addr {
	p := netip.MustParsePrefix(network)
	given := map[netip.Addr]bool{}
	return func() netip.Addr {
		for {
			a := randomIn(p)
			last := a.AsSlice()[a.BitLen()/8-1]
			if last >= 16 && last < 248 && !given[a] { // servers have the low addresses
				given[a] = true
				return a
			}
		}
	}
}

// oddPackets adds packets of protocols and forms that no box may send, to any destination.
func (b *builder) oddPackets(s *side) {
	add := func(n string, packets func(to netip.Addr, token []byte) [][]byte) {
		to := s.stranger()
		b.add(s, "protocols and packets", n, to.String(), func(a *attack) {
			a.send(b.frame(s, packets(to, a.task.Token)...))
			a.refused(name.ReasonProtocol)
			at := netip.AddrPortFrom(to, 0)
			a.to, a.exclusive, a.matches = at, true, atAddress(at)
		})
	}
	for _, p := range []struct {
		name  string
		proto byte
		head  []byte // start of a valid packet of the protocol
	}{
		{"GRE tunnel", unix.IPPROTO_GRE, []byte{0, 0, 8, 0}},
		{"SCTP", unix.IPPROTO_SCTP, []byte{0x9d, 0xd4, 0, 80, 0, 0, 0, 0}},
		{"IPv4 tunnel", unix.IPPROTO_IPIP, []byte{0x45, 0, 0, 20}},
		{"IPv6 tunnel", unix.IPPROTO_IPV6, []byte{0x60, 0, 0, 0}},
		{"ESP", unix.IPPROTO_ESP, []byte{0, 0, 0, 1, 0, 0, 0, 1}},
	} {
		add(p.name, func(to netip.Addr, token []byte) [][]byte {
			return [][]byte{packet.IP(s.box, to, p.proto, append(p.head[:len(p.head):len(p.head)], token...))}
		})
	}
	datagram := func(to netip.Addr, token []byte) []byte {
		return packet.UDP(netip.AddrPortFrom(s.box, framePort), netip.AddrPortFrom(to, 4242), token)
	}
	if s.box.Is4() {
		add("fragments", func(to netip.Addr, token []byte) [][]byte {
			whole := datagram(to, token)
			return [][]byte{
				packet.IPv4(s.box, to, unix.IPPROTO_UDP, nil, 0x2000, whole[:16]), // more fragments
				packet.IPv4(s.box, to, unix.IPPROTO_UDP, nil, 2, whole[16:]),
			}
		})
		add("IP options", func(to netip.Addr, token []byte) [][]byte {
			return [][]byte{packet.IPv4(s.box, to, unix.IPPROTO_UDP, []byte{148, 4, 0, 0}, 0, datagram(to, token))} // router alert
		})
		return
	}
	for _, h := range []struct {
		name   string
		header byte
	}{{"hop-by-hop options", unix.IPPROTO_HOPOPTS}, {"destination options", unix.IPPROTO_DSTOPTS}} {
		add(h.name, func(to netip.Addr, token []byte) [][]byte {
			padded := append([]byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}, datagram(to, token)...) // PadN
			return [][]byte{packet.IPv6(s.box, to, h.header, padded)}
		})
	}
	add("fragments", func(to netip.Addr, token []byte) [][]byte {
		whole := datagram(to, token)
		fragment := func(offset uint16, more byte, part []byte) []byte {
			head := []byte{unix.IPPROTO_UDP, 0, byte(offset >> 8), byte(offset) | more, 0, 0, 0xb0, 0xc5}
			return packet.IPv6(s.box, to, unix.IPPROTO_FRAGMENT, append(head, part...))
		}
		return [][]byte{fragment(0, 1, whole[:16]), fragment(16, 0, whole[16:])}
	})
}
