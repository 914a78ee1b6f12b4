package flow

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// Message types for connections (linux/netfilter/nfnetlink_conntrack.h). MessageNew is about a new or existing connection,
// MessageDelete about an ended one; sent to the kernel, MessageDelete removes a connection.
const (
	MessageNew    netlink.HeaderType = unix.NFNL_SUBSYS_CTNETLINK << 8 // IPCTNL_MSG_CT_NEW
	messageGet                       = MessageNew | 1                  // IPCTNL_MSG_CT_GET
	MessageDelete                    = MessageNew | 2                  // IPCTNL_MSG_CT_DELETE
	messageStats                     = MessageNew | 5                  // IPCTNL_MSG_CT_GET_STATS
)

// ctaStatsEntries is the attribute of the answer to messageStats with the number of connections in the namespace.
const ctaStatsEntries = 1

// AttributeMark is the attribute with the mark of a connection. A message begins with HeaderLen bytes of headers after
// netlink's own.
const (
	AttributeMark = 8
	HeaderLen     = 4 // family, version, resource (linux/netfilter/nfnetlink.h)
)

// Attributes of a connection, and nested attributes.
const (
	ctaTupleOrig, ctaTupleReply, ctaStatus, ctaProtoInfo = 1, 2, 3, 4
	ctaCountersOrig, ctaCountersReply, ctaID, ctaZone    = 9, 10, 12, 18
	ctaTimestamp, ctaMarkMask                            = 20, 21

	ctaTupleIP, ctaTupleProto              = 1, 2
	ctaV4Src, ctaV4Dst, ctaV6Src, ctaV6Dst = 1, 2, 3, 4
	ctaProtoNum, ctaSrcPort, ctaDstPort    = 1, 2, 3
	ctaProtoInfoTCP, ctaTCPState           = 1, 1
	ctaPackets, ctaBytes                   = 1, 2
	ctaStart, ctaStop                      = 1, 2
)

// Assured is the status bit of a connection on which packets have passed both ways (IPS_ASSURED,
// linux/netfilter/nf_conntrack_common.h).
const Assured = 1 << 2

// Entry is a connection in the kernel's table.
type Entry struct {
	Flow
	Mark, ID    uint32
	Status      uint32
	Orig, Reply Counter
	Start, Stop time.Time // zero if the kernel does not record timestamps

	answerPort uint16 // source port of answers, which is the actual destination port
	state      uint8  // TCP state
	raw        raw
}

// Counter counts the traffic in one direction. Zero if the kernel does not count.
type Counter struct{ Packets, Bytes uint64 }

// raw identifies a connection to the kernel, in the kernel's encoding.
type raw struct {
	family byte
	tuple  []byte
	zone   []byte // nil: the default zone
}

// Parse parses a message about a connection, without its netlink header. It reads only the attributes that are used,
// because there can be tens of thousands of messages per second. The result refers to data and is invalid once data
// changes. Parse returns false if data is too short.
func Parse(data []byte) (e Entry, ok bool) {
	if len(data) < HeaderLen {
		return e, false
	}
	e.raw.family = data[0]
	for kind, b := range attributes(data[HeaderLen:]) {
		switch kind {
		case ctaTupleOrig:
			e.raw.tuple = b
			t := tupleIn(b)
			e.Protocol, e.Src, e.Dst = ProtocolOf(t.protocol), t.src, t.dst
		case ctaTupleReply:
			t := tupleIn(b)
			e.From, e.answerPort = t.dst.Addr(), t.src.Port()
		case ctaStatus:
			e.Status = uint32(parseNumber(b))
		case ctaProtoInfo:
			e.state = uint8(parseNumber(findAttribute(findAttribute(b, ctaProtoInfoTCP), ctaTCPState)))
		case AttributeMark:
			e.Mark = uint32(parseNumber(b))
		case ctaID:
			e.ID = uint32(parseNumber(b))
		case ctaZone:
			e.raw.zone = b
		case ctaCountersOrig:
			e.Orig = counterIn(b)
		case ctaCountersReply:
			e.Reply = counterIn(b)
		case ctaTimestamp:
			e.Start, e.Stop = parseTime(findAttribute(b, ctaStart)), parseTime(findAttribute(b, ctaStop))
		}
	}
	return e, true
}

func counterIn(b []byte) (c Counter) {
	for kind, b := range attributes(b) {
		switch kind {
		case ctaPackets:
			c.Packets = parseNumber(b)
		case ctaBytes:
			c.Bytes = parseNumber(b)
		}
	}
	return c
}

// tuple identifies one direction of a connection.
type tuple struct {
	protocol uint8
	src, dst netip.AddrPort
}

func tupleIn(b []byte) (t tuple) {
	var src, dst netip.Addr
	for kind, b := range attributes(findAttribute(b, ctaTupleIP)) {
		switch a, _ := netip.AddrFromSlice(b); kind {
		case ctaV4Src, ctaV6Src:
			src = a.Unmap()
		case ctaV4Dst, ctaV6Dst:
			dst = a.Unmap()
		}
	}
	var from, to uint16
	for kind, b := range attributes(findAttribute(b, ctaTupleProto)) {
		switch kind {
		case ctaProtoNum:
			t.protocol = uint8(parseNumber(b))
		case ctaSrcPort:
			from = uint16(parseNumber(b))
		case ctaDstPort:
			to = uint16(parseNumber(b))
		}
	}
	t.src, t.dst = netip.AddrPortFrom(src, from), netip.AddrPortFrom(dst, to)
	return t
}

// ProtocolOf returns the protocol with a number; empty if boxes may not use it.
func ProtocolOf(number uint8) policy.Protocol {
	switch number {
	case unix.IPPROTO_TCP:
		return policy.TCP
	case unix.IPPROTO_UDP:
		return policy.UDP
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return policy.ICMP
	}
	return ""
}

const nlaTypeMask = 1<<14 - 1 // without NLA_F_NESTED and NLA_F_NET_BYTEORDER (linux/netlink.h)

// attributes iterates over the netlink attributes in b, without the flags of their types. It stops at a malformed one.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size := int(binary.NativeEndian.Uint16(b))
			if size < unix.SizeofNlAttr || size > len(b) {
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) & nlaTypeMask
			if !yield(kind, b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
		}
	}
}

// findAttribute returns the first attribute of a kind in b; nil if there is no such attribute.
func findAttribute(b []byte, kind uint16) []byte {
	for k, value := range attributes(b) {
		if k == kind {
			return value
		}
	}
	return nil
}

// parseNumber reads a number in network byte order; 0 if b is empty.
func parseNumber(b []byte) (n uint64) {
	for _, x := range b[:min(len(b), 8)] {
		n = n<<8 | uint64(x)
	}
	return n
}

// parseTime reads nanoseconds since 1970; zero if b is empty.
func parseTime(b []byte) time.Time {
	if len(b) == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(parseNumber(b)))
}
