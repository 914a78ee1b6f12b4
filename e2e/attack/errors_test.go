package attack

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/e2e/harness"
)

// An ICMP error quotes a packet of its connection. One box quotes the connection of another, to break it or to slow it
// down.
func TestAttackForgedICMPErrors(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	www := [2]netip.Addr{w.V4("www.example.com"), w.V6("www.example.com")}
	tooBig := [2]byte{4, 0} // the codes of "fragmentation needed" and "packet too big"
	both := allowedCIDRs(www[0].String()+"/32", www[1].String()+"/128")
	victim := w.Raid(w.Create(map[string]any{"network_policy": both}))
	thief := w.Raid(w.Create(map[string]any{"network_policy": both}))
	for family := range 2 {
		// The kernel forwards a connection of the victim. The thief has guessed its port.
		server := netip.AddrPortFrom(www[family], 4444)
		c := victim.MustDial("tcp", server)
		from := netip.MustParseAddrPort(c.LocalAddr().String())
		before := icmpTo(w, server.Addr())
		quoted := harness.TCPPacket(server, from, 16, "12345678")
		for _, code := range []byte{0, 1, 2, 3} {
			thief.Packet(harness.ICMPPacket(thief.Own(server.Addr()), server.Addr(), 3, 1, code, append(make([]byte, 4), quoted...)))
		}
		thief.Packet(harness.ICMPPacket(thief.Own(server.Addr()), server.Addr(), 3, 2, tooBig[family], append([]byte{0, 0, 2, 0x28}, quoted...)))
		answered(thief)
		w.AwaitCounted()
		if got := icmpTo(w, server.Addr()); got != before {
			t.Errorf("%d forged ICMP errors about another box's connection reached %v", got-before, server)
		}
		// A box may send any error about its own connection.
		victim.Packet(harness.ICMPPacket(victim.Own(server.Addr()), server.Addr(), 3, 1, 0, append(make([]byte, 4), quoted...)))
		w.Until("the victim's own error arrives", func() bool { return icmpTo(w, server.Addr()) > before })
		// The gateway's own connection to a public URL's port.
		at := netip.AddrPortFrom(victim.Own(server.Addr()), 3000)
		gateway := netip.MustParseAddr([]string{"10.200.0.1", "fd42:b0c5::1"}[family])
		if err := connectedTo(w, victim, at, func(local netip.AddrPort) {
			quoted := harness.TCPPacket(local, at, 16, "12345678")
			for _, code := range []byte{0, 1, 2, 3} {
				thief.Packet(harness.ICMPPacket(thief.Own(gateway), gateway, 3, 1, code, append(make([]byte, 4), quoted...)))
			}
			thief.Packet(harness.ICMPPacket(thief.Own(gateway), gateway, 3, 2, tooBig[family], append([]byte{0, 0, 2, 0x28}, quoted...)))
			answered(thief)
			if seen := foreignErrors(w); seen != 0 {
				t.Errorf("%d forged ICMP errors reached the gateway's connection to another box (IPv%d)", seen, 4+2*family)
			}
		}); err != nil {
			t.Error(err)
		}
	}
}

// foreignErrors counts the ICMP errors that TCP of the gateway's host has checked and rejected.
func foreignErrors(w *harness.World) (n int) {
	w.T.Helper()
	out, err := w.Net.Gateway().Run(w.T.Context(), "cat", "/proc/thread-self/net/netstat")
	if err != nil {
		w.T.Fatal(err, out)
	}
	lines := strings.Split(out, "\n")
	for i, name := range strings.Fields(lines[0]) {
		if name == "OutOfWindowIcmps" {
			_, err = fmt.Sscan(strings.Fields(lines[1])[i], &n)
		}
	}
	if err != nil {
		w.T.Fatal(err)
	}
	return n
}

// icmpTo counts the ICMP packets that have reached an address.
func icmpTo(w *harness.World, a netip.Addr) (n int) {
	for _, p := range w.Net.Packets(a.String()) {
		if p.Protocol == unix.IPPROTO_ICMP || p.Protocol == unix.IPPROTO_ICMPV6 {
			n += p.Count
		}
	}
	return n
}

// connectedTo opens a connection from the gateway's host to a listener in the box, and calls f with its near end.
func connectedTo(w *harness.World, r *harness.Raider, at netip.AddrPort, f func(netip.AddrPort)) error {
	var ln net.Listener
	err := r.Inside(func() (err error) {
		ln, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		return err
	}
	defer ln.Close()
	c, err := w.Net.Gateway().DialContext(w.T.Context(), "tcp", at.String())
	if err != nil {
		return err
	}
	defer c.Close()
	f(netip.MustParseAddrPort(c.LocalAddr().String()))
	return nil
}
