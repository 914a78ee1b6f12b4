// Package packet writes packets byte by byte, including malformed ones that no socket would send, and reads the headers
// of received packets.
package packet

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	hopLimit     = 64
	dontFragment = 0x4000 // DF
)

// IP returns a plain packet of dst's family.
func IP(src, dst netip.Addr, proto byte, payload []byte) []byte {
	if dst.Is4() {
		return IPv4(src, dst, proto, nil, dontFragment, payload)
	}
	return IPv6(src, dst, proto, payload)
}

// IPv4 returns a packet with the given options (a multiple of four bytes) and fragment word (RFC 791, 3.1).
func IPv4(src, dst netip.Addr, proto byte, options []byte, fragment uint16, payload []byte) []byte {
	head := 20 + len(options)
	b := make([]byte, head, head+len(payload))
	b[0] = 0x40 | byte(head/4)
	binary.BigEndian.PutUint16(b[2:], uint16(head+len(payload)))
	binary.BigEndian.PutUint16(b[4:], 0xb0c5) // the same identification in every packet, so that fragments belong together
	binary.BigEndian.PutUint16(b[6:], fragment)
	b[8], b[9] = hopLimit, proto
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	copy(b[20:], options)
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return append(b, payload...)
}

// IPv6 returns a packet whose payload begins with a header of type next (RFC 8200, 3).
func IPv6(src, dst netip.Addr, next byte, payload []byte) []byte {
	b := make([]byte, 40, 40+len(payload))
	b[0] = 0x60
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	b[6], b[7] = next, hopLimit
	s, d := src.As16(), dst.As16()
	copy(b[8:], s[:])
	copy(b[24:], d[:])
	return append(b, payload...)
}

// UDP returns a UDP datagram (RFC 768).
func UDP(src, dst netip.AddrPort, payload []byte) []byte {
	b := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(b, src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(payload)))
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[6:], sumWith(src.Addr(), dst.Addr(), unix.IPPROTO_UDP, b))
	return b
}

// Echo returns an ICMP echo request (RFC 792, RFC 4443 4.1).
func Echo(src, dst netip.Addr, id uint16, payload []byte) []byte {
	b := make([]byte, 8, 8+len(payload))
	b[0] = 8
	if dst.Is6() {
		b[0] = 128
	}
	binary.BigEndian.PutUint16(b[4:], id)
	b = append(b, payload...)
	if dst.Is6() {
		binary.BigEndian.PutUint16(b[2:], sumWith(src, dst, unix.IPPROTO_ICMPV6, b))
	} else {
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	return b
}

// ICMPProtocol returns the protocol number of ICMP in the family of an address.
func ICMPProtocol(a netip.Addr) byte {
	if a.Is4() {
		return unix.IPPROTO_ICMP
	}
	return unix.IPPROTO_ICMPV6
}

// ARPClaim returns a gratuitous ARP reply that claims addr for mac (RFC 826, RFC 5227 3).
func ARPClaim(addr netip.Addr, mac []byte) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 2}
	for range 2 {
		b = append(b, mac...)
		b = append(b, addr.AsSlice()...)
	}
	return b
}

// NeighbourClaim returns an unsolicited neighbour advertisement that claims addr for mac (RFC 4861, 4.4).
func NeighbourClaim(src, dst, addr netip.Addr, mac []byte) []byte {
	b := []byte{136, 0, 0, 0, 0x20, 0, 0, 0} // override
	b = append(b, addr.AsSlice()...)
	b = append(b, 2, 1)
	b = append(b, mac...)
	binary.BigEndian.PutUint16(b[2:], sumWith(src, dst, unix.IPPROTO_ICMPV6, b))
	p := IPv6(src, dst, unix.IPPROTO_ICMPV6, b)
	p[7] = 255 // hop limit: proves that no router forwarded it
	return p
}

// sumWith returns the checksum with the pseudo-header of either family.
func sumWith(src, dst netip.Addr, proto byte, b []byte) uint16 {
	var pseudo []byte
	if dst.Is4() {
		pseudo = append(pseudo, src.AsSlice()...)
		pseudo = append(pseudo, dst.AsSlice()...)
	} else {
		s, d := src.As16(), dst.As16()
		pseudo = append(append(pseudo, s[:]...), d[:]...)
	}
	pseudo = append(pseudo, 0, proto)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(b)))
	if len(b)%2 == 1 {
		b = append(b[:len(b):len(b)], 0)
	}
	return checksum(append(pseudo, b...))
}

// checksum returns the Internet checksum (RFC 1071). An odd last byte is padded with zero.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// Packet contains the headers that the watchers need, of a packet that begins with its IP header.
type Packet struct {
	src, Dst netip.AddrPort // port 0: the packet has no port or was too short
	Proto    byte
	Flags    byte // of TCP
	Seq      uint32
	Kind     byte // of ICMP
}

// Flags of TCP (RFC 9293, 3.1).
const (
	SYN = 0x02
	RST = 0x04
	ACK = 0x10
)

// Read reads the headers; IPv6 extension headers are not followed.
func Read(b []byte) (Packet, bool) {
	var p Packet
	var src, dst netip.Addr
	var rest []byte
	first := true
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		src, dst, p.Proto = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b[9]
		first = binary.BigEndian.Uint16(b[6:])&0x1fff == 0
		rest = b[min(len(b), int(b[0]&15)*4):]
	case len(b) >= 40 && b[0]>>4 == 6:
		src, dst, p.Proto = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b[6]
		rest = b[40:]
	default:
		return p, false
	}
	var from, to uint16
	switch {
	case !first:
	case (p.Proto == unix.IPPROTO_TCP || p.Proto == unix.IPPROTO_UDP) && len(rest) >= 4:
		from, to = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
		if p.Proto == unix.IPPROTO_TCP && len(rest) >= 14 {
			p.Seq, p.Flags = binary.BigEndian.Uint32(rest[4:]), rest[13]
		}
	case (p.Proto == unix.IPPROTO_ICMP || p.Proto == unix.IPPROTO_ICMPV6) && len(rest) >= 1:
		p.Kind = rest[0]
	}
	p.src, p.Dst = netip.AddrPortFrom(src, from), netip.AddrPortFrom(dst, to)
	return p, true
}
