package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
)

// gateName is the name of the filter on every host-side interface.
const gateName = "boxgate_unjudged"

// gatePriority puts it before any other filter.
const gatePriority = 1

// setGate installs a filter on the interface that makes the box's packets undeliverable until they are judged: it marks
// them as not judged, which the routing rules prohibit, and as not for this host, so that the kernel does not forward them
// whatever the routing rules are. Only the chain that admits a packet reverts both. So when the table is gone, not even
// packets with a forged source, which the rules on the pool's addresses do not match, are delivered; and when the routing
// rules are gone as well, no packet is forwarded. The filter belongs to the interface: it survives the gateway and is not
// part of nftables.
func (l *Links) setGate(link netlink.Link) error {
	index := link.Attrs().Index
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0),
		Parent: netlink.HANDLE_CLSACT}}
	if err := l.nl.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("packet gate: %w", err)
	}
	if err := l.nl.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: gatePriority,
			Protocol: unix.ETH_P_ALL},
		Fd: l.gate, Name: gateName, DirectAction: true,
	}); err != nil {
		return fmt.Errorf("packet gate: %w", err)
	}
	return nil
}

// loadGate loads the program and returns its descriptor:
//
//	skb->mark = markUnjudged;
//	if (skb->pkt_type == PACKET_HOST && bpf_skb_change_type(skb, PACKET_MULTICAST))
//		return TC_ACT_SHOT;
//	return TC_ACT_OK;
//
// A multicast packet passes everything up to routing, unlike a packet to another host.
func loadGate() (int, error) {
	const (
		move  = 0xb7 // BPF_ALU64 | BPF_MOV | BPF_K: register = immediate
		load  = 0x61 // BPF_LDX | BPF_MEM | BPF_W: destination = *(u32 *)(source + offset)
		store = 0x63 // BPF_STX | BPF_MEM | BPF_W: *(u32 *)(destination + offset) = source
		jne   = 0x55 // BPF_JMP | BPF_JNE | BPF_K: skip offset instructions unless destination == immediate
		jeq   = 0x15 // BPF_JMP | BPF_JEQ | BPF_K: skip offset instructions if destination == immediate
		call  = 0x85 // BPF_JMP | BPF_CALL: register 0 = helper(registers 1 to 5)
		exit  = 0x95 // BPF_JMP | BPF_EXIT

		offsetType = 4  // of pkt_type in struct __sk_buff
		offsetMark = 8  // of mark
		changeType = 32 // bpf_skb_change_type
		shot       = 2  // TC_ACT_SHOT
		schedCls   = 3  // BPF_PROG_TYPE_SCHED_CLS
		progLoad   = 5  // BPF_PROG_LOAD
	)
	unjudged := network.MarkUnjudged // as a variable: the immediate is signed
	var code []byte
	code = append(code, instruction(move, 2, 0, int32(unjudged))...)
	code = append(code, instruction(store, 1|2<<4, offsetMark, 0)...) // register 1 points to the packet
	code = append(code, instruction(load, 2|1<<4, offsetType, 0)...)
	code = append(code, instruction(jne, 2, 5, unix.PACKET_HOST)...) // to the end
	code = append(code, instruction(move, 2, 0, unix.PACKET_MULTICAST)...)
	code = append(code, instruction(call, 0, 0, changeType)...)
	code = append(code, instruction(jeq, 0, 2, 0)...) // to the end
	code = append(code, instruction(move, 0, 0, shot)...)
	code = append(code, instruction(exit, 0, 0, 0)...)
	code = append(code, instruction(move, 0, 0, 0)...) // TC_ACT_OK
	code = append(code, instruction(exit, 0, 0, 0)...)
	license := []byte("Apache-2.0\x00")
	attr := struct { // union bpf_attr, the part of BPF_PROG_LOAD, on a 64-bit kernel
		kind, count       uint32
		code, license     unsafe.Pointer
		logLevel, logSize uint32
		log               unsafe.Pointer
		version, flags    uint32
		name              [16]byte
	}{kind: schedCls, count: uint32(len(code) / 8), code: unsafe.Pointer(&code[0]), license: unsafe.Pointer(&license[0])}
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

// instruction encodes one eBPF instruction. registers has the destination in the low and the source in the high half.
func instruction(op, registers byte, offset int16, immediate int32) []byte {
	b := []byte{op, registers}
	b = binary.NativeEndian.AppendUint16(b, uint16(offset))
	return binary.NativeEndian.AppendUint32(b, uint32(immediate))
}
