package report

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"boxgate/audit"
)

// Attributes of a connection (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctaTupleOrig, ctaStatus, ctaMark, ctaCountersOrig, ctaCountersReply, ctaID, ctaTimestamp, ctaMarkMask = 1, 3, 8, 9, 10, 12, 20, 21

	ctaTupleIP, ctaTupleProto           = 1, 2
	ctaV4Src, ctaV4Dst                  = 1, 2
	ctaV6Src, ctaV6Dst                  = 3, 4
	ctaProtoNum, ctaSrcPort, ctaDstPort = 1, 2, 3
	ctaBytes                            = 2
	ctaStart, ctaStop                   = 1, 2
)

const (
	nlaTypeMask  = 1<<14 - 1                       // without NLA_F_NESTED and NLA_F_NET_BYTEORDER (linux/netlink.h)
	nfgenmsgLen  = 4                               // family, version, resource (linux/netfilter/nfnetlink.h)
	ctMessageNew = unix.NFNL_SUBSYS_CTNETLINK << 8 // IPCTNL_MSG_CT_NEW
	ctMessageGet = ctMessageNew | 1                // IPCTNL_MSG_CT_GET
	ctMessageDel = ctMessageNew | 2                // IPCTNL_MSG_CT_DELETE
)

// decodeFlow reads of an event what is recorded of a connection, and not the rest: there can be tens of thousands a second.
// The phase is empty if the event is no beginning and no end of a connection.
func decodeFlow(m netlink.Message) (c conntrack.Flow, phase audit.Phase) {
	const created = netlink.Create | netlink.Excl
	switch {
	case len(m.Data) < nfgenmsgLen:
		return c, ""
	case m.Header.Type == ctMessageNew && m.Header.Flags&created == created:
		phase = audit.PhaseOpen
	case m.Header.Type == ctMessageDel:
		phase = audit.PhaseEnd
	default:
		return c, ""
	}
	return flowIn(m.Data[nfgenmsgLen:]), phase
}

// flowIn reads the attributes of a connection.
func flowIn(b []byte) (c conntrack.Flow) {
	for kind, b := range attributes(b) {
		switch kind {
		case ctaTupleOrig:
			decodeTuple(b, &c.TupleOrig)
		case ctaStatus:
			c.Status = conntrack.Status(number(b))
		case ctaMark:
			c.Mark = uint32(number(b))
		case ctaID:
			c.ID = uint32(number(b))
		case ctaCountersOrig:
			c.CountersOrig.Bytes = number(child(b, ctaBytes))
		case ctaCountersReply:
			c.CountersReply.Bytes = number(child(b, ctaBytes))
		case ctaTimestamp:
			c.Timestamp.Start, c.Timestamp.Stop = instant(child(b, ctaStart)), instant(child(b, ctaStop))
		}
	}
	return c
}

func decodeTuple(b []byte, t *conntrack.Tuple) {
	for kind, b := range attributes(child(b, ctaTupleIP)) {
		switch a, _ := netip.AddrFromSlice(b); kind {
		case ctaV4Src, ctaV6Src:
			t.IP.SourceAddress = a
		case ctaV4Dst, ctaV6Dst:
			t.IP.DestinationAddress = a
		}
	}
	for kind, b := range attributes(child(b, ctaTupleProto)) {
		switch kind {
		case ctaProtoNum:
			t.Proto.Protocol = uint8(number(b))
		case ctaSrcPort:
			t.Proto.SourcePort = uint16(number(b))
		case ctaDstPort:
			t.Proto.DestinationPort = uint16(number(b))
		}
	}
}

// attributes are the netlink attributes in b, without the flags of their types. It ends where b is malformed.
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

// child returns the attribute of a kind among those in b; nil if there is none.
func child(b []byte, kind uint16) []byte {
	for k, value := range attributes(b) {
		if k == kind {
			return value
		}
	}
	return nil
}

// number reads a number in network byte order; 0 for nothing.
func number(b []byte) (n uint64) {
	for _, x := range b[:min(len(b), 8)] {
		n = n<<8 | uint64(x)
	}
	return n
}

// instant reads nanoseconds since 1970; zero for nothing.
func instant(b []byte) time.Time {
	if len(b) == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(number(b)))
}
