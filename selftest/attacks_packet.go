package selftest

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"boxgate/policy/name"

	"boxgate/selftest/packet"
)

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
