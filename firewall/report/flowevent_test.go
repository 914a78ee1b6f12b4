package report

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"boxgate/audit"
)

// eventOf makes a message of what follows the header of netlink.
func eventOf(kind uint16, flags uint16, data []byte) netlink.Message {
	return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.HeaderFlags(flags)}, Data: data}
}

// recordedEvents are the beginning and the end of a TCP connection and of a ping over IPv6, as Linux 6.18 tells of them.
var recordedEvents = []struct {
	kind, flags uint16
	data        string
}{
	{0x100, 0x600, "020000003400018014000180080001007f000001080002007f0000011c000280050001000600000006000200b1f4000006000300" +
		"03e700003400028014000180080001007f000001080002007f0000011c00028005000100060000000600020003e7000006000300" +
		"b1f4000008000c00b8b1fe2208000300000000080800070000000078300004802c0001800500010001000000050002000a000000" +
		"05000300000000000600040003000000060005000000000008000800800000070c001b0018ea5d6a1c42a024"},
	{0x102, 0x0, "020000003400018014000180080001007f000001080002007f0000011c000280050001000600000006000200b1f4000006000300" +
		"03e700003400028014000180080001007f000001080002007f0000011c00028005000100060000000600020003e7000006000300" +
		"b1f4000008000c00b8b1fe22080003000000020e08000700000000771c0009800c00010000000000000000060c00020000000000" +
		"000001421c000a800c00010000000000000000040c00020000000000000000da1c0014800c00010018ea5d6a1c42b3b20c000200" +
		"18ea5d6a1ec504c6100004800c000180050001000700000008000800800000070c001b0018ea5d6a1ec506b8"},
	{0x100, 0x600, "0a000000540001802c00018014000300000000000000000000000000000000011400040000000000000000000000000000000001" +
		"24000280050001003a000000060007000ecf000005000800800000000500090000000000540002802c0001801400030000000000" +
		"000000000000000000000001140004000000000000000000000000000000000124000280050001003a000000060007000ecf0000" +
		"0500080081000000050009000000000008000c003ec9b94c0800030000000008080007000000001e08000800800000070c001b00" +
		"18ea5d64c83cee62"},
	{0x102, 0x0, "0a000000540001802c00018014000300000000000000000000000000000000011400040000000000000000000000000000000001" +
		"24000280050001003a000000060007000ecf000005000800800000000500090000000000540002802c0001801400030000000000" +
		"000000000000000000000001140004000000000000000000000000000000000124000280050001003a000000060007000ecf0000" +
		"0500080081000000050009000000000008000c003ec9b94c080003000000020a080007000000001d1c0009800c00010000000000" +
		"000000010c00020000000000000000681c000a800c00010000000000000000010c00020000000000000000681c0014800c000100" +
		"18ea5d64c83cf2830c00020018ea5d64f18942dd08000800800000070c001b0018ea5d64f189434b"},
}

// What is recorded of a connection is what the kernel says.
func TestDecodeFlow(t *testing.T) {
	t.Parallel()
	data, err := hex.DecodeString(recordedEvents[1].data)
	if err != nil {
		t.Fatal(err)
	}
	c, phase := decodeFlow(eventOf(recordedEvents[1].kind, recordedEvents[1].flags, data))
	if at := netip.MustParseAddr("127.0.0.1"); phase != audit.PhaseEnd || c.TupleOrig.IP.SourceAddress != at || c.TupleOrig.IP.DestinationAddress != at {
		t.Errorf("%q, %+v", phase, c.TupleOrig)
	}
	if p := c.TupleOrig.Proto; p.Protocol != unix.IPPROTO_TCP || p.SourcePort != 45556 || p.DestinationPort != 999 {
		t.Errorf("%+v", p)
	}
	if c.Mark != 0x80000007 || c.ID != 0xb8b1fe22 || c.CountersOrig.Bytes != 322 || c.CountersReply.Bytes != 218 ||
		c.Timestamp.Stop.Sub(c.Timestamp.Start) != 42094868*time.Nanosecond {
		t.Errorf("%+v", c)
	}
}

// Whatever comes, decodeFlow reads it without a panic; of what the kernel may send, it reads what the library reads.
func FuzzDecodeFlow(f *testing.F) {
	for i, e := range recordedEvents {
		data, err := hex.DecodeString(e.data)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, i%2 == 0, i > 1, uint8(6), uint16(1024), uint16(443), uint32(1), uint64(7))
	}
	f.Fuzz(func(t *testing.T, data []byte, begins, v6 bool, proto uint8, src, dst uint16, word uint32, long uint64) {
		_, _ = decodeFlow(eventOf(ctMessageNew, uint16(netlink.Create|netlink.Excl), data))
		m := eventOf(ctMessageDel, 0, nil)
		want := audit.PhaseEnd
		if begins {
			m, want = eventOf(ctMessageNew, uint16(netlink.Create|netlink.Excl), nil), audit.PhaseOpen
		}
		m.Data = encodeFlow(t, v6, proto, src, dst, word, long)
		got, phase := decodeFlow(m)
		var ev conntrack.Event
		if err := ev.Unmarshal(m); err != nil {
			t.Fatal(err)
		}
		if phase != want || !sameFlow(&got, ev.Flow) {
			t.Fatalf("%s: read\n%+v\nthe library\n%+v", phase, got, *ev.Flow)
		}
	})
}

// encodeFlow makes the message of a connection, in which all words are alike.
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
		e.Uint64(1, 1) // packets
		e.Uint64(ctaBytes, long)
	}
	return append(make([]byte, nfgenmsgLen), encode(func(e *netlink.AttributeEncoder) {
		nested(e, ctaTupleOrig, tuple)
		nested(e, 2, tuple) // of the replies
		e.Uint32(ctaID, word)
		e.Uint32(ctaStatus, word)
		nested(e, ctaCountersOrig, counters)
		nested(e, ctaCountersReply, counters)
		nested(e, ctaTimestamp, func(e *netlink.AttributeEncoder) {
			e.Uint64(ctaStart, long)
			e.Uint64(ctaStop, long+1)
		})
		e.Uint32(ctaMark, word)
	})...)
}

// sameFlow compares what is recorded.
func sameFlow(a, b *conntrack.Flow) bool {
	return a.TupleOrig.IP == b.TupleOrig.IP && a.TupleOrig.Proto.Protocol == b.TupleOrig.Proto.Protocol &&
		a.TupleOrig.Proto.SourcePort == b.TupleOrig.Proto.SourcePort && a.TupleOrig.Proto.DestinationPort == b.TupleOrig.Proto.DestinationPort &&
		a.Mark == b.Mark && a.ID == b.ID && a.Status == b.Status && a.CountersOrig.Bytes == b.CountersOrig.Bytes &&
		a.CountersReply.Bytes == b.CountersReply.Bytes && a.Timestamp.Start.Equal(b.Timestamp.Start) && a.Timestamp.Stop.Equal(b.Timestamp.Stop)
}
