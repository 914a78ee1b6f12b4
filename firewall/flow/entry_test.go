package flow

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// recordedEvents are netlink messages (without header) of Linux 6.18 about the beginning and the end of a TCP connection
// and of a ping over IPv6.
var recordedEvents = []string{
	"020000003400018014000180080001007f000001080002007f0000011c000280050001000600000006000200b1f4000006000300" +
		"03e700003400028014000180080001007f000001080002007f0000011c00028005000100060000000600020003e7000006000300" +
		"b1f4000008000c00b8b1fe2208000300000000080800070000000078300004802c0001800500010001000000050002000a000000" +
		"05000300000000000600040003000000060005000000000008000800800000070c001b0018ea5d6a1c42a024",
	"020000003400018014000180080001007f000001080002007f0000011c000280050001000600000006000200b1f4000006000300" +
		"03e700003400028014000180080001007f000001080002007f0000011c00028005000100060000000600020003e7000006000300" +
		"b1f4000008000c00b8b1fe22080003000000020e08000700000000771c0009800c00010000000000000000060c00020000000000" +
		"000001421c000a800c00010000000000000000040c00020000000000000000da1c0014800c00010018ea5d6a1c42b3b20c000200" +
		"18ea5d6a1ec504c6100004800c000180050001000700000008000800800000070c001b0018ea5d6a1ec506b8",
	"0a000000540001802c00018014000300000000000000000000000000000000011400040000000000000000000000000000000001" +
		"24000280050001003a000000060007000ecf000005000800800000000500090000000000540002802c0001801400030000000000" +
		"000000000000000000000001140004000000000000000000000000000000000124000280050001003a000000060007000ecf0000" +
		"0500080081000000050009000000000008000c003ec9b94c0800030000000008080007000000001e08000800800000070c001b00" +
		"18ea5d64c83cee62",
	"0a000000540001802c00018014000300000000000000000000000000000000011400040000000000000000000000000000000001" +
		"24000280050001003a000000060007000ecf000005000800800000000500090000000000540002802c0001801400030000000000" +
		"000000000000000000000001140004000000000000000000000000000000000124000280050001003a000000060007000ecf0000" +
		"0500080081000000050009000000000008000c003ec9b94c080003000000020a080007000000001d1c0009800c00010000000000" +
		"000000010c00020000000000000000681c000a800c00010000000000000000010c00020000000000000000681c0014800c000100" +
		"18ea5d64c83cf2830c00020018ea5d64f18942dd08000800800000070c001b0018ea5d64f189434b",
}

// Parse reads the attributes that are used.
func TestParse(t *testing.T) {
	t.Parallel()
	data, err := hex.DecodeString(recordedEvents[1])
	if err != nil {
		t.Fatal(err)
	}
	e, ok := Parse(data)
	if at := netip.MustParseAddr("127.0.0.1"); !ok || e.Protocol != policy.TCP || e.Src != netip.AddrPortFrom(at, 45556) || e.Dst != netip.AddrPortFrom(at, 999) || e.From != at || e.answerPort != 999 {
		t.Errorf("%v, %+v", ok, e)
	}
	if e.Mark != 0x80000007 || e.ID != 0xb8b1fe22 || e.Orig.Bytes != 322 || e.Reply.Bytes != 218 || e.state != 7 || e.Stop.Sub(e.Start) != 42094868*time.Nanosecond {
		t.Errorf("%+v", e)
	}
	if _, ok := Parse(data[:HeaderLen-1]); ok {
		t.Error("an entry where there is no message")
	}
}

// Parse never panics; for messages that the kernel may send, it reads the same as the library.
func FuzzParse(f *testing.F) {
	for i, e := range recordedEvents {
		data, err := hex.DecodeString(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, i > 1, uint8(6), uint16(1024), uint16(443), uint32(1), uint64(7))
	}
	f.Fuzz(func(t *testing.T, data []byte, v6 bool, proto uint8, src, dst uint16, word uint32, long uint64) {
		if e, ok := Parse(data); ok {
			_ = e.removal()
		}
		m := netlink.Message{Header: netlink.Header{Type: MessageDelete}, Data: encodeFlow(t, v6, proto, src, dst, word, long)}
		got, ok := Parse(m.Data)
		var ev conntrack.Event
		if err := ev.Unmarshal(m); err != nil {
			t.Fatal(err)
		}
		if !ok || !same(&got, ev.Flow) {
			t.Fatalf("read\n%+v\nthe library\n%+v", got, *ev.Flow)
		}
	})
}

// encodeFlow makes the message of a connection with the same value in all words.
func encodeFlow(t *testing.T, v6 bool, proto uint8, src, dst uint16, word uint32, long uint64) []byte {
	t.Helper()
	encode := func(fill func(*netlink.AttributeEncoder)) []byte {
		e := netlink.NewAttributeEncoder()
		e.ByteOrder = binary.BigEndian
		fill(e)
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	nested := func(e *netlink.AttributeEncoder, kind uint16, fill func(*netlink.AttributeEncoder)) {
		e.Bytes(kind|unix.NLA_F_NESTED, encode(fill))
	}
	tuple := func(e *netlink.AttributeEncoder) {
		nested(e, ctaTupleIP, func(e *netlink.AttributeEncoder) {
			if v6 {
				e.Bytes(ctaV6Src, netip.MustParseAddr("2001:db8::1").AsSlice())
				e.Bytes(ctaV6Dst, binary.BigEndian.AppendUint64(netip.MustParseAddr("2001:db8::").AsSlice()[:8], long))
			} else {
				e.Bytes(ctaV4Src, []byte{192, 0, 2, 1})
				e.Bytes(ctaV4Dst, binary.BigEndian.AppendUint32(nil, word))
			}
		})
		nested(e, ctaTupleProto, func(e *netlink.AttributeEncoder) {
			e.Uint8(ctaProtoNum, proto)
			e.Uint16(ctaSrcPort, src)
			e.Uint16(ctaDstPort, dst)
		})
	}
	counters := func(e *netlink.AttributeEncoder) {
		e.Uint64(ctaPackets, long/2)
		e.Uint64(ctaBytes, long)
	}
	return append(make([]byte, HeaderLen), encode(func(e *netlink.AttributeEncoder) {
		nested(e, ctaTupleOrig, tuple)
		nested(e, ctaTupleReply, tuple)
		e.Uint32(ctaID, word)
		e.Uint32(ctaStatus, word)
		nested(e, ctaProtoInfo, func(e *netlink.AttributeEncoder) {
			nested(e, ctaProtoInfoTCP, func(e *netlink.AttributeEncoder) { e.Uint8(ctaTCPState, proto) })
		})
		nested(e, ctaCountersOrig, counters)
		nested(e, ctaCountersReply, counters)
		nested(e, ctaTimestamp, func(e *netlink.AttributeEncoder) {
			e.Uint64(ctaStart, long)
			e.Uint64(ctaStop, long+1)
		})
		e.Uint32(AttributeMark, word)
	})...)
}

// same compares the parts that are used.
func same(e *Entry, f *conntrack.Flow) bool {
	o, r := f.TupleOrig, f.TupleReply
	return e.Src == netip.AddrPortFrom(o.IP.SourceAddress.Unmap(), o.Proto.SourcePort) && e.Dst == netip.AddrPortFrom(o.IP.DestinationAddress.Unmap(), o.Proto.DestinationPort) &&
		e.From == r.IP.DestinationAddress.Unmap() && e.answerPort == r.Proto.SourcePort && e.Protocol == ProtocolOf(o.Proto.Protocol) &&
		e.Mark == f.Mark && e.ID == f.ID && e.Status == uint32(f.Status) && e.state == f.ProtoInfo.TCP.State &&
		e.Orig == counterOf(f.CountersOrig) && e.Reply == counterOf(f.CountersReply) &&
		e.Start.Equal(f.Timestamp.Start) && e.Stop.Equal(f.Timestamp.Stop)
}

func counterOf(c conntrack.Counter) Counter { return Counter{Packets: c.Packets, Bytes: c.Bytes} }
