package watch

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/selftest/packet"
)

// The watch recognises a probe's packet by its token, in any case, and a connection request by its sequence number.
func TestWireKnowsTheProbes(t *testing.T) {
	t.Parallel()
	const own, uplink = 5, 2
	box4, box6 := netip.MustParseAddr("10.200.0.3"), netip.MustParseAddr("fd42:b0c5::3")
	target, stranger6 := netip.MustParseAddrPort("8.8.8.77:4242"), netip.MustParseAddr("2001:4860:4860::77")
	prefix := []byte("bgst00c0ffee")
	w := &Wire{box: own, prefix: prefix, requests: map[uint32]netip.AddrPort{}, watched: map[netip.Addr]bool{stranger6: true}}
	datagram := func(to netip.AddrPort, payload string) []byte {
		from := netip.AddrPortFrom(box4, 1)
		return packet.IP(box4, to.Addr(), unix.IPPROTO_UDP, packet.UDP(from, to, []byte(payload)))
	}
	request := func(flags byte) []byte {
		segment := make([]byte, 20)
		copy(segment[2:], []byte{16, 146}) // port 4242
		copy(segment[4:], []byte{1, 2, 3, 4})
		segment[13] = flags
		return packet.IP(box4, target.Addr(), unix.IPPROTO_TCP, segment)
	}
	at := func(index int, kind uint8) *unix.SockaddrLinklayer {
		return &unix.SockaddrLinklayer{Ifindex: index, Pkttype: kind}
	}
	for _, b := range [][]byte{datagram(target, "bgst00c0ffee0007"), request(packet.SYN)} {
		w.inspect(at(own, unix.PACKET_HOST), b)
	}
	w.inspect(at(uplink, unix.PACKET_OUTGOING), datagram(target, "nothing of ours"))
	w.inspect(at(uplink, unix.PACKET_OUTGOING), request(packet.SYN|packet.ACK))
	if len(w.sightings) != 0 {
		t.Fatalf("seen where nothing was: %+v", w.sightings)
	}
	w.inspect(at(uplink, unix.PACKET_OUTGOING), datagram(target, "x BGST00c0ffee0007 y"))
	w.inspect(at(uplink, unix.PACKET_OUTGOING), request(packet.SYN))
	w.inspect(at(uplink, unix.PACKET_HOST), packet.IP(box6, stranger6, unix.IPPROTO_ESP, []byte("x")))
	if len(w.sightings) != 3 || w.sightings[0].Task != 7 || w.sightings[1].First != target || w.sightings[2].To.Addr() != stranger6 {
		t.Errorf("seen: %+v", w.sightings)
	}
}
