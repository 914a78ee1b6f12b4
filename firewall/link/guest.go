package link

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
)

// RouterV6 is the address that routers of a guest's link have towards it: router advertisements must come from a link-local
// address (RFC 4861, section 4.2). It is on no interface; the filter of the link resolves it.
var RouterV6 = netip.MustParseAddr("fe80::1")

// guestFilter describes the link of a guest that does ARP and neighbour discovery itself. Other boxes have permanent
// neighbours instead.
type guestFilter struct {
	host, guest net.HardwareAddr // of the two ends
	v4, v6      netip.Addr       // of the guest
	mtu         int
	network.Addresses
}

// Offsets in struct __sk_buff (linux/bpf.h).
const (
	skbLen       = 0
	skbType      = 4
	skbMark      = 8
	skbTagged    = 20 // vlan_present
	skbInterface = 40 // ifindex
	skbGSOSize   = 176
)

// Helpers of the kernel (linux/bpf.h).
const (
	helperStoreBytes      = 9
	helperReplaceChecksum = 11 // bpf_l4_csum_replace
	helperRedirect        = 23
	helperLoadBytes       = 26
	helperChecksum        = 28 // bpf_csum_diff
	helperChangeType      = 32
	helperChangeTail      = 38
)

// The frame is copied to the stack, with the network header at an address that is a multiple of eight.
const (
	frameEther   = -86
	frameNetwork = frameEther + etherHeader
	etherHeader  = 14
	adFrame      = etherHeader + 40 + 32 // a neighbour advertisement with its option
)

// program returns the filter of the link:
//
//   - It drops frames with a VLAN tag, a source other than the guest's hardware address, a length above the MTU (unless the
//     kernel segments them), and all protocols but ARP, IPv4 and IPv6.
//   - ARP requests of the guest's address for the gateway or the sink are answered; other ARP is dropped.
//   - Neighbour solicitations for the gateway, the sink and [RouterV6] are answered; other neighbour discovery is dropped.
//   - Packets that are not meant to leave the link are dropped: from no address, from link-local addresses, and to servers of
//     DHCP, which read frames before the filter.
//   - Everything else continues as on other links, see setGate.
//
// It belongs to the interface: a guest keeps its connections while the gateway does not run.
func (g *guestFilter) program() []byte {
	p := &assembler{}
	p.move(6, 1) // the packet
	p.load(4, 2, 6, skbTagged)
	p.jump(jne, 2, 0, "drop")
	p.load(4, 2, 6, skbGSOSize)
	p.jump(jne, 2, 0, "sized")
	p.load(4, 2, 6, skbLen)
	p.jump(jgt, 2, uint32(g.mtu+etherHeader), "drop") //nolint:gosec // at most maxMTU
	p.label("sized")
	p.read(0, frameEther, etherHeader)
	p.equals(frameEther+6, g.guest, "drop")
	p.load(2, 2, 10, frameEther+12)
	p.jump(jeq, 2, native16(unix.ETH_P_ARP), "arp")
	p.jump(jeq, 2, native16(unix.ETH_P_IP), "ipv4")
	p.jump(jeq, 2, native16(unix.ETH_P_IPV6), "ipv6")
	p.label("drop")
	p.exit(shot)
	g.answerARP(p)
	g.filterV4(p)
	g.filterV6(p)
	p.label("gate")
	p.move(1, 6)
	p.gate()
	return p.code()
}

// answerARP writes the part about ARP (RFC 826).
func (g *guestFilter) answerARP(p *assembler) {
	const sender, target = frameNetwork + 14, frameNetwork + 24 // protocol addresses
	v4 := g.v4.As4()
	p.label("arp")
	p.read(etherHeader, frameNetwork, 28)
	p.equals(frameNetwork, []byte{0, 1, 8, 0, 6, 4, 0, 1}, "drop") // a request for an IPv4 address on Ethernet
	p.equals(sender, v4[:], "drop")
	p.load(4, 7, 10, target)
	for _, a := range []netip.Addr{g.GatewayV4, g.SinkV4} {
		b := a.As4()
		p.jump(jeq, 7, binary.NativeEndian.Uint32(b[:]), "arp answer")
	}
	p.jump(always, 0, 0, "drop")
	p.label("arp answer")
	p.write(frameEther, g.guest)
	p.write(frameEther+6, g.host)
	p.write(frameNetwork+6, []byte{0, 2})
	p.write(frameNetwork+8, g.host)
	p.store(2, 10, sender, 7) // the address in question
	p.shiftRight(7, 16)
	p.store(2, 10, sender+2, 7)
	p.write(frameNetwork+18, g.guest)
	p.write(target, v4[:])
	p.send(etherHeader + 28)
}

// filterV4 writes the part about IPv4.
func (g *guestFilter) filterV4(p *assembler) {
	const protocol, source, destPort = frameNetwork + 9, frameNetwork + 12, frameNetwork + 22
	p.label("ipv4")
	p.read(etherHeader, frameNetwork, 24)
	p.load(4, 2, 10, source)
	p.jump(jeq, 2, 0, "drop")
	p.load(1, 2, 10, protocol)
	p.jump(jne, 2, unix.IPPROTO_UDP, "gate")
	p.load(2, 2, 10, destPort)
	p.jump(jeq, 2, native16(67), "drop")
	p.jump(always, 0, 0, "gate")
}

// filterV6 writes the part about IPv6 and neighbour discovery (RFC 4861).
func (g *guestFilter) filterV6(p *assembler) {
	const next, hops, source, dest = frameNetwork + 6, frameNetwork + 7, frameNetwork + 8, frameNetwork + 24
	const kind, target = frameNetwork + 40, frameNetwork + 48
	p.label("ipv6")
	p.read(etherHeader, frameNetwork, 40)
	p.load(1, 2, 10, next)
	p.jump(jne, 2, unix.IPPROTO_ICMPV6, "own address")
	p.read(etherHeader+40, kind, 8)
	p.load(1, 2, 10, kind)
	p.jump(jeq, 2, 135, "solicitation")
	p.jump(jlt, 2, 133, "own address")
	p.jump(jgt, 2, 137, "own address")
	p.jump(always, 0, 0, "drop")
	// Packets from link-local addresses, or without an address, do not leave the link.
	p.label("own address")
	p.load(2, 2, 10, source)
	p.jump(jeq, 2, 0, "drop")
	p.and(2, native16(0xffc0))
	p.jump(jeq, 2, native16(0xfe80), "drop")
	p.jump(always, 0, 0, "gate")

	p.label("solicitation")
	p.read(etherHeader+40, kind, 24)
	p.load(1, 2, 10, hops)
	p.jump(jne, 2, 255, "drop") // it has passed a router
	p.load(2, 2, 10, source)
	p.and(2, native16(0xffc0))
	p.jump(jeq, 2, native16(0xfe80), "from the guest")
	own := g.v6.As16()
	p.equals(source, own[:], "drop") // another's address, or the unspecified one of a check for duplicates
	p.label("from the guest")
	for i, a := range []netip.Addr{g.GatewayV6, g.SinkV6, RouterV6} {
		other, b := fmt.Sprint("another ", i), a.As16()
		p.equals(target, b[:], other)
		p.jump(always, 0, 0, "advertise")
		p.label(other)
	}
	p.jump(always, 0, 0, "drop")

	p.label("advertise")
	p.write(frameEther, g.guest)
	p.write(frameEther+6, g.host)
	p.write(frameNetwork, []byte{0x60, 0, 0, 0, 0, 32, unix.IPPROTO_ICMPV6, 255})
	p.copy(dest, source, 16)
	p.copy(source, target, 16)
	p.write(kind, []byte{136, 0, 0, 0, 0xe0, 0, 0, 0}) // router, solicited, override
	p.write(target+16, append([]byte{2, 1}, g.host...))
	p.checksum(source, 64, 32+unix.IPPROTO_ICMPV6, kind+2)
	p.resize(adFrame)
	p.send(adFrame)
}

// forwardTo returns a program that sends all packets out of another interface of the namespace.
func forwardTo(index int) []byte {
	p := &assembler{}
	p.redirect(uint32(index)) //nolint:gosec // an index is positive
	return p.code()
}

// loadProgram loads a program for a filter and returns its descriptor.
func loadProgram(code []byte) (int, error) {
	const schedCls, progLoad = 3, 5 // BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_LOAD
	license := []byte("Apache-2.0\x00")
	attr := struct { // union bpf_attr, the part of BPF_PROG_LOAD, on a 64-bit kernel
		kind, count       uint32
		code, license     unsafe.Pointer
		logLevel, logSize uint32
		log               unsafe.Pointer
		version, flags    uint32
		name              [16]byte
	}{kind: schedCls, count: uint32(len(code) / 8), code: unsafe.Pointer(&code[0]), license: unsafe.Pointer(&license[0])} //nolint:gosec // a few hundred instructions
	copy(attr.name[:15], gateName)
	for {
		fd, _, errno := unix.Syscall(unix.SYS_BPF, progLoad, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		if errno == unix.EAGAIN { // interrupted by a signal, such as one of Go's scheduler
			continue
		}
		if errno != 0 {
			return -1, errno
		}
		return int(fd), nil
	}
}
