package attack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// A box with few permissions pretends to be the box with the key.
func TestAttackForgedSource(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	victim := w.Raid(w.SecretBox())
	api, other := [2]netip.Addr{w.V4("api.example.com"), w.V6("api.example.com")}, harness.AttackerAt(99)
	gateway4, gateway6 := w.Net.GatewayAddrs()
	sources := [2][]netip.Addr{
		{victim.V4, gateway4, netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("10.200.0.2"), netip.MustParseAddr("10.200.77.77"),
			netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("224.0.0.1")},
		{victim.V6, gateway6, netip.MustParseAddr("fd42:b0c5::1"), netip.MustParseAddr("fd42:b0c5::2"), netip.MustParseAddr("fd42:b0c5::7777"),
			netip.MustParseAddr("::"), netip.MustParseAddr("2001:4860::8888"), netip.MustParseAddr("fe80::1"),
			netip.MustParseAddr("::ffff:10.200.0.3")},
	}
	for family, list := range sources {
		thief := w.Raid(w.Create(map[string]any{"network_policy": allowedCIDRs(attackerNets...)}))
		for i, src := range list {
			// The victim may reach one address, the thief the other: the packet must pass as neither.
			for _, dst := range []netip.Addr{api[family], other[family]} {
				thief.Packet(harness.TCPPacket(netip.AddrPortFrom(src, 40000), netip.AddrPortFrom(dst, 443), 2, ""))
				thief.Packet(harness.UDPPacket(netip.AddrPortFrom(src, 40000), netip.AddrPortFrom(dst, uint16(20000+i)), "from another"))
				// As the victim in every respect, including the hardware address.
				thief.FrameFrom(victim.MAC, thief.Other, ethertypeOf(dst), harness.UDPPacket(netip.AddrPortFrom(src, 40000), netip.AddrPortFrom(dst, 4444), "x"))
			}
		}
		e := w.Denial(thief.Box, policy.StageKernel, api[family], 443, name.ReasonSpoofed)
		if got := thief.RefusalOf(e.Addr, patience(harness.SawNothing)); got != harness.SawNothing {
			t.Errorf("the thief saw %s", got)
		}
		for range 3 { // the kernel drops these before any rule
			thief.Packet(harness.UDPPacket(netip.AddrPortFrom(netip.IPv6Loopback(), 9), netip.AddrPortFrom(api[1], 9), "x"))
		}
		// Every packet is counted, although not each one is logged separately.
		sent, told := uint64(len(list)*6), uint64(0)
		w.Until("all forged packets are accounted for", func() bool {
			told = 0
			for _, e := range w.Events(thief.Box) {
				if e.Reason == name.ReasonSpoofed {
					told += max(e.Count, 1)
				}
			}
			return told >= sent
		})
		if told != sent {
			t.Errorf("%d packets were sent, %d are accounted for", sent, told)
		}
	}
	w.Untouched(api[0], api[1], other[0], other[1])
	for _, e := range w.Events(victim.Box) {
		t.Errorf("a decision about the victim: %s", audit.Line(e))
	}
	if got := victim.RefusalOf(api[0], patience(harness.SawNothing)); got != harness.SawNothing {
		t.Errorf("the victim saw %s", got)
	}
}

func ethertypeOf(a netip.Addr) uint16 {
	if a.Is4() {
		return unix.ETH_P_IP
	}
	return unix.ETH_P_IPV6
}

// Frames that are not IP, or hide IP behind tags, neither change the host's neighbour table nor get out.
func TestAttackForgedNeighbours(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	victim := w.Raid(w.SecretBox())
	thief := w.Raid(w.Create(map[string]any{"network_policy": allowedCIDRs(attackerNets...)}))
	before := neighbours(w)
	everybody := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for _, claimed := range []netip.Addr{victim.V4, netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("192.0.2.253"), netip.MustParseAddr("10.200.0.99")} {
		for _, op := range []byte{1, 2} {
			arp := append([]byte{0, 1, 8, 0, 6, 4, 0, op}, thief.MAC...)
			arp = append(append(arp, claimed.AsSlice()...), thief.Other...)
			arp = append(arp, claimed.AsSlice()...) // gratuitous
			thief.Frame(unix.ETH_P_ARP, arp)
			thief.FrameFrom(thief.MAC, everybody, unix.ETH_P_ARP, arp)
			copy(arp[24:], netip.MustParseAddr("10.200.0.1").AsSlice()) // asking the gateway
			thief.Frame(unix.ETH_P_ARP, arp)
		}
	}
	for _, claimed := range []netip.Addr{victim.V6, netip.MustParseAddr("fd42:b0c5::1"), netip.MustParseAddr("fd42:b0c5::99")} {
		for _, src := range []netip.Addr{thief.V6, claimed, netip.MustParseAddr("fe80::1"), netip.IPv6Unspecified()} {
			for kind := byte(133); kind <= 137; kind++ { // router and neighbour discovery, redirects
				body := append(make([]byte, 4), claimed.AsSlice()...)
				body = append(append(body, 2, 1), thief.MAC...) // target link-layer address
				for _, dst := range []netip.Addr{netip.MustParseAddr("fd42:b0c5::1"), netip.MustParseAddr("ff02::1"), victim.V6} {
					b := harness.ICMPPacket(src, dst, 0, kind, 0, body)
					b[7] = 255 // discovery must come from the link
					binary.BigEndian.PutUint16(b[42:], 0)
					binary.BigEndian.PutUint16(b[42:], harness.SumWith(src, dst, unix.IPPROTO_ICMPV6, b[40:]))
					thief.Packet(b)
				}
			}
		}
	}
	// Behind a VLAN tag, two of them, MPLS and PPPoE: to the attacker whom the policy allows, and to the metadata host.
	for _, dst := range []netip.Addr{harness.AttackerAt(98)[0], netip.MustParseAddr("169.254.169.254")} {
		ip := harness.UDPPacket(netip.AddrPortFrom(thief.V4, 9), netip.AddrPortFrom(dst, 9), "tagged")
		thief.Frame(unix.ETH_P_8021Q, append([]byte{0, 5, 8, 0}, ip...))
		thief.Frame(unix.ETH_P_8021AD, append([]byte{0, 5, 0x81, 0, 0, 6, 8, 0}, ip...))
		thief.Frame(unix.ETH_P_MPLS_UC, append([]byte{0, 1, 1, 64}, ip...))
		thief.Frame(unix.ETH_P_PPP_SES, append([]byte{0x11, 0, 0, 1, 0, byte(len(ip) + 2), 0, 0x21}, ip...))
		thief.FrameFrom(thief.MAC, victim.MAC, unix.ETH_P_IP, ip)
	}
	// Directly to the victim, with various link-layer addresses.
	for _, mac := range []net.HardwareAddr{thief.Other, victim.MAC, victim.Other, everybody} {
		thief.FrameFrom(thief.MAC, mac, unix.ETH_P_IP, harness.UDPPacket(netip.AddrPortFrom(thief.V4, 9), netip.AddrPortFrom(victim.V4, 3000), "x"))
		thief.FrameFrom(thief.MAC, mac, unix.ETH_P_IPV6, harness.UDPPacket(netip.AddrPortFrom(thief.V6, 9), netip.AddrPortFrom(victim.V6, 3000), "x"))
	}
	answered(thief)
	w.Denial(thief.Box, policy.StageKernel, victim.V4, 3000, name.ReasonProtectedRange)
	w.Denial(thief.Box, policy.StageKernel, victim.V6, 3000, name.ReasonProtectedRange)
	w.Untouched(harness.AttackerAt(98)[0], netip.MustParseAddr("169.254.169.254"))
	if after := neighbours(w); after != before {
		t.Errorf("the host's neighbours changed from\n%s\nto\n%s", before, after)
	}
	if got := receivedDatagram(victim); got != "" {
		t.Errorf("the victim received %s", got)
	}
	// The victim's address is unchanged.
	w.MustSh(victim.Box, "curl -sS -o /dev/null https://api.example.com/after")
	seen := w.Net.Received("api.example.com", testnet.Path("/after"))
	if len(seen) != 1 || seen[0].Header.Get("Authorization") != "Bearer "+harness.TestSecret {
		t.Errorf("the server received %+v", seen)
	}
}

// neighbours returns the host's ARP and IPv6 neighbour tables.
func neighbours(w *harness.World) string {
	w.T.Helper()
	out, err := w.Net.Gateway().Run(w.T.Context(), "ip", "neigh", "show", "nud", "all")
	if err != nil {
		w.T.Fatal(err, out)
	}
	var kept []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, " dev bg") && !strings.Contains(line, "NOARP") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// receivedDatagram describes a received datagram to port 3000, or returns "" if there is none.
func receivedDatagram(r *harness.Raider) string {
	buf := make([]byte, 2048)
	tv := unix.NsecToTimeval(int64(20 * time.Millisecond))
	_ = unix.SetsockoptTimeval(r.FD, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	for {
		n, from, err := unix.Recvfrom(r.FD, buf, 0)
		if errors.Is(err, unix.EINTR) { // interrupted by a signal of the Go scheduler
			continue
		}
		if err != nil {
			return ""
		}
		b := buf[:n]
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype != unix.PACKET_OUTGOING && n > 58 &&
			(b[14]>>4 == 4 && b[36] == 0x0b && b[37] == 0xb8 || b[14]>>4 == 6 && b[56] == 0x0b && b[57] == 0xb8) {
			return fmt.Sprintf("%x", b)
		}
	}
}
