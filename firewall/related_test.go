package firewall

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// checksum is the checksum of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// complain sends "host unreachable" from a box about a UDP packet from server to client.
func (w *world) complain(id policy.BoxID, server, client netip.AddrPort) {
	w.t.Helper()
	ip := make([]byte, 20)
	ip[0], ip[3], ip[8], ip[9] = 0x45, 36, 64, unix.IPPROTO_UDP
	copy(ip[12:], server.Addr().AsSlice())
	copy(ip[16:], client.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	m := append([]byte{3, 1, 0, 0, 0, 0, 0, 0}, ip...)
	for _, n := range []uint16{server.Port(), client.Port(), 16, 0, 0, 0, 0, 0} {
		m = binary.BigEndian.AppendUint16(m, n)
	}
	binary.BigEndian.PutUint16(m[2:], checksum(m))
	w.must(w.in(w.boxNS[id], func() error {
		c, err := net.Dial("ip4:icmp", server.Addr().String())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = c.Write(m)
		return err
	}))
}

// A box that guesses the ports of another's connection cannot send errors about it to the server.
func TestErrorsAboutAnotherBoxsConnectionStayHere(t *testing.T) {
	w := newWorld(t)
	w.addBox("victim", 10)
	w.addBox("thief", 11)
	for _, id := range []policy.BoxID{"victim", "thief"} {
		w.apply(id, allow("198.51.100.0/28"))
	}
	server := w.serveUDP(w.outside, netip.AddrPortFrom(outside4, 0).String())
	c, err := w.dial(w.boxNS["victim"], "udp", server)
	w.must(err)
	_, err = ask(c, "x")
	w.must(err)
	client := addrPort(c.LocalAddr())
	arrived := func() bool {
		return w.wire.find(func(p seenPacket) bool { return p.dst == outside4 && p.proto == unix.IPPROTO_ICMP })
	}
	w.complain("thief", server, client)
	w.flushWire("thief")
	if arrived() {
		t.Error("the error of another box arrived")
	}
	w.complain("victim", server, client)
	w.wait("the box's own error arrives", arrived)
}
