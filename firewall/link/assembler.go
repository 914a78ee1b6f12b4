package link

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
)

// assembler builds an eBPF program. Conditions compare 32 bits. Registers 0 to 5 are changed by helpers; register 10 points
// to the end of the stack.
type assembler struct {
	list   []instruction
	labels map[string]int
}

// instruction is one eBPF instruction (RFC 9669). to is the label of its jump.
type instruction struct {
	op, registers byte // the destination in the low half of registers, the source in the high half
	offset        int16
	immediate     uint32
	to            string
}

// Conditions of jumps: BPF_JMP32 with BPF_K, except always, which is BPF_JMP | BPF_JA.
const (
	always = 0x05
	jeq    = 0x16
	jgt    = 0x26
	jne    = 0x56
	jlt    = 0xa6
)

// Results of a filter with direct action.
const (
	pass = 0 // TC_ACT_OK
	shot = 2 // TC_ACT_SHOT
)

// size returns the bits of the size of a memory access.
func size(bytes int) byte {
	return map[int]byte{1: 0x10, 2: 0x08, 4: 0x00}[bytes]
}

func (p *assembler) add(op byte, dst, src int, offset int, immediate uint32) {
	p.list = append(p.list, instruction{op: op, registers: byte(dst | src<<4), offset: int16(offset), immediate: immediate}) //nolint:gosec // registers and offsets are small
}

// label names the next instruction. A name is used once.
func (p *assembler) label(name string) {
	if p.labels == nil {
		p.labels = map[string]int{}
	}
	p.labels[name] = len(p.list)
}

func (p *assembler) jump(condition byte, register int, value uint32, to string) {
	p.list = append(p.list, instruction{op: condition, registers: byte(register), immediate: value, to: to}) //nolint:gosec // a register
}

func (p *assembler) move(dst, src int)                 { p.add(0xbf, dst, src, 0, 0) }
func (p *assembler) set(dst int, value uint32)         { p.add(0xb4, dst, 0, 0, value) }         // 32 bits
func (p *assembler) plus(dst int, value int32)         { p.add(0x07, dst, 0, 0, uint32(value)) } //nolint:gosec // two's complement
func (p *assembler) and(dst int, mask uint32)          { p.add(0x54, dst, 0, 0, mask) }
func (p *assembler) shiftRight(dst int, bits uint32)   { p.add(0x74, dst, 0, 0, bits) }
func (p *assembler) load(bytes, dst, base, offset int) { p.add(0x61|size(bytes), dst, base, offset, 0) }
func (p *assembler) store(bytes, base, offset, src int) {
	p.add(0x63|size(bytes), base, src, offset, 0)
}
func (p *assembler) call(helper uint32) { p.add(0x85, 0, 0, 0, helper) }

func (p *assembler) exit(result uint32) {
	p.set(0, result)
	p.add(0x95, 0, 0, 0, 0)
}

// address sets a register to an address on the stack.
func (p *assembler) address(dst, at int) {
	p.move(dst, 10)
	p.plus(dst, int32(at)) //nolint:gosec // the stack is small
}

// read copies n bytes of the packet in register 6 to the stack; without them the packet is dropped.
func (p *assembler) read(from, at int, n uint32) { p.readOr(from, at, n, "drop") }

// readOr is read; without the bytes, the program continues at other.
func (p *assembler) readOr(from, at int, n uint32, other string) {
	p.move(1, 6)
	p.set(2, uint32(from)) //nolint:gosec // positive
	p.address(3, at)
	p.set(4, n)
	p.call(helperLoadBytes)
	p.jump(jne, 0, 0, other)
}

// send writes the first n bytes of the packet from the stack and sends it back out of its interface.
func (p *assembler) send(n uint32) {
	p.move(1, 6)
	p.set(2, 0)
	p.address(3, frameEther)
	p.set(4, n)
	p.set(5, 0)
	p.call(helperStoreBytes)
	p.jump(jne, 0, 0, "drop")
	p.load(4, 1, 6, skbInterface)
	p.set(2, 0)
	p.call(helperRedirect)
	p.add(0x95, 0, 0, 0, 0)
}

// redirect sends the packet out of another interface.
func (p *assembler) redirect(index uint32) {
	p.set(1, index)
	p.set(2, 0)
	p.call(helperRedirect)
	p.add(0x95, 0, 0, 0, 0)
}

// resize gives the packet a length of n bytes.
func (p *assembler) resize(n uint32) {
	p.move(1, 6)
	p.set(2, n)
	p.set(3, 0)
	p.call(helperChangeTail)
	p.jump(jne, 0, 0, "drop")
}

// equals continues at other unless the bytes on the stack equal b. Their number and place are even.
func (p *assembler) equals(at int, b []byte, other string) {
	for len(b) > 0 {
		n := chunk(at, len(b))
		p.load(n, 2, 10, at)
		p.jump(jne, 2, native(b[:n]), other)
		at, b = at+n, b[n:]
	}
}

// write stores bytes on the stack. Their number and place are even.
func (p *assembler) write(at int, b []byte) {
	for len(b) > 0 {
		n := chunk(at, len(b))
		p.add(0x62|size(n), 10, 0, at, native(b[:n]))
		at, b = at+n, b[n:]
	}
}

// copy copies n bytes on the stack, a multiple of four.
func (p *assembler) copy(to, from, n int) {
	for i := 0; i < n; i += 4 {
		p.load(4, 2, 10, from+i)
		p.store(4, 10, to+i, 2)
	}
}

// checksum stores the internet checksum (RFC 1071) of n bytes on the stack, a multiple of four, and of one more number.
func (p *assembler) checksum(at int, n, more uint32, to int) {
	p.set(1, 0)
	p.set(2, 0)
	p.address(3, at)
	p.set(4, n)
	p.set(5, native16(uint16(more))) //nolint:gosec // a length and a protocol
	p.call(helperChecksum)
	for range 2 { // add the carries
		p.add(0xbc, 1, 0, 0, 0) // register 1 = the low word of register 0
		p.shiftRight(1, 16)
		p.and(0, 0xffff)
		p.add(0x0c, 0, 1, 0, 0) // register 0 += register 1
	}
	p.add(0xa4, 0, 0, 0, 0xffffffff) // complement
	p.store(2, 10, to, 0)
}

// minSegment is the smallest size of the parts, in bytes without headers, into which the host may split a packet when it leaves. The
// limits of rate and volume count the packet before. TCP's smallest parts are 36 bytes, where a server asks for them.
const minSegment = 32

// gate writes the part that makes packets undeliverable until they are judged, see setGate:
//
//	skb->mark = markUnjudged;
//	if (skb->pkt_type == PACKET_HOST && bpf_skb_change_type(skb, PACKET_MULTICAST))
//		return TC_ACT_SHOT;
//	return TC_ACT_OK;
//
// A multicast packet passes everything up to routing, unlike a packet to another host. The packet is in register 1.
func (p *assembler) gate() {
	p.move(6, 1)
	p.load(4, 2, 6, skbGSOSize)
	p.jump(jeq, 2, 0, "one packet")
	p.jump(jlt, 2, minSegment, "refuse")
	p.label("one packet")
	p.checkOffload()
	p.label("judge")
	p.move(1, 6)
	p.set(2, network.MarkUnjudged)
	p.store(4, 1, skbMark, 2)
	p.load(4, 2, 1, skbType)
	p.jump(jne, 2, unix.PACKET_HOST, "passed")
	p.set(2, unix.PACKET_MULTICAST)
	p.call(helperChangeType)
	p.jump(jeq, 0, 0, "passed")
	p.label("refuse")
	p.exit(shot)
	p.label("passed")
	p.exit(pass)
}

// checkOffload drops packets whose checksum is still to be computed, unless the field for it comes after the addresses and
// ports. The sender chooses the field (struct virtio_net_hdr of a tap or packet socket), and the uplink fills it in when the packet has
// been judged: it would replace the address or port that the rules have compared. Only packets without extension headers and
// fragmentation have such checksums otherwise.
//
// A filter cannot read whether a checksum is to be computed. But bpf_l4_csum_replace leaves the packet as it is then, and
// bpf_skb_change_tail refuses to remove the field: with EINVAL, before it changes anything.
func (p *assembler) checkOffload() {
	const kind, before, after = 12, -8, -4 // of the protocol in the packet; on the stack
	const refused = 1<<32 - 22             // -EINVAL as a word
	const beyondPorts = 4 + 1              // a field from there on ends after a packet of this length
	p.readOr(kind, before, 2, "refuse")
	p.move(1, 6)
	p.set(2, kind)
	p.set(3, 0)
	p.set(4, 1)
	p.set(5, 2) // as if two bytes had changed from 0 to 1
	p.call(helperReplaceChecksum)
	p.jump(jne, 0, 0, "refuse")
	p.readOr(kind, after, 2, "refuse")
	p.load(2, 7, 10, before)
	p.load(2, 2, 10, after)
	p.add(0xac, 2, 7, 0, 0) // register 2 ^= register 7
	p.jump(jeq, 2, 0, "unfinished")
	p.move(1, 6)
	p.set(2, kind)
	p.address(3, before)
	p.set(4, 2)
	p.set(5, 0)
	p.call(helperStoreBytes)
	p.jump(jne, 0, 0, "refuse")
	p.jump(always, 0, 0, "judge")

	p.label("unfinished")
	p.jump(jeq, 7, native16(unix.ETH_P_IP), "unfinished ipv4")
	p.jump(jne, 7, native16(unix.ETH_P_IPV6), "refuse")
	p.readOr(etherHeader+6, before, 1, "refuse")
	p.load(1, 2, 10, before)
	for _, extension := range []uint32{unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_AH, unix.IPPROTO_DSTOPTS} {
		p.jump(jeq, 2, extension, "refuse")
	}
	p.set(7, etherHeader+40+beyondPorts)
	p.jump(always, 0, 0, "field")
	p.label("unfinished ipv4")
	p.readOr(etherHeader, before, 8, "refuse")
	p.load(2, 2, 10, before+6)
	p.and(2, native16(0x3fff))
	p.jump(jne, 2, 0, "refuse") // a fragment
	p.load(1, 7, 10, before)
	p.and(7, 15)
	p.add(0x64, 7, 0, 0, 2) // register 7 <<= 2
	p.plus(7, etherHeader+beyondPorts)
	p.label("field")
	p.move(1, 6)
	p.move(2, 7)
	p.set(3, 0)
	p.call(helperChangeTail)
	p.jump(jne, 0, refused, "refuse")
}

// code encodes the program.
func (p *assembler) code() []byte {
	var b []byte
	for i, in := range p.list {
		if in.to != "" {
			in.offset = int16(p.labels[in.to] - i - 1) //nolint:gosec // a program is short
		}
		b = append(b, in.op, in.registers)
		b = binary.NativeEndian.AppendUint16(b, uint16(in.offset)) //nolint:gosec // two's complement
		b = binary.NativeEndian.AppendUint32(b, in.immediate)
	}
	return b
}

// chunk returns the size of the next aligned access.
func chunk(at, left int) int {
	if at%4 == 0 && left >= 4 {
		return 4
	}
	return 2
}

// native returns two or four bytes as the number that the processor reads there.
func native(b []byte) uint32 {
	if len(b) == 2 {
		return uint32(binary.NativeEndian.Uint16(b))
	}
	return binary.NativeEndian.Uint32(b)
}

// native16 returns a number in network order as the number that the processor reads.
func native16(v uint16) uint32 { return native(binary.BigEndian.AppendUint16(nil, v)) }
