package selftest

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"boxgate/selftest/packet"
	"boxgate/selftest/probe"
)

// connect returns a task that connects and sends data.
func connect(to netip.AddrPort, data ...[]byte) probe.Task {
	return probe.Task{Kind: probe.TCP, To: to, Data: data}
}

// send replaces the task of an attack but keeps its number and token.
func (a *attack) send(t probe.Task) {
	t.ID, t.Token = a.task.ID, a.task.Token
	a.task = t
}

// udpFrame returns a task that sends a datagram of the box as a whole packet.
func (b *builder) udpFrame(s *side, to netip.AddrPort, payload []byte) probe.Task {
	return b.frame(s, b.datagram(s.box, to, payload))
}

func (b *builder) datagram(src netip.Addr, to netip.AddrPort, payload []byte) []byte {
	from := netip.AddrPortFrom(src, framePort)
	return packet.IP(src, to.Addr(), unix.IPPROTO_UDP, packet.UDP(from, to, payload))
}

// framePort is the source port of datagrams sent as frames.
const framePort = 40404

// frame returns a task that sends whole packets of one family.
func (b *builder) frame(s *side, packets ...[]byte) probe.Task {
	t := probe.Task{Kind: probe.Frame, Data: packets, EtherType: unix.ETH_P_IP}
	if s.box.Is6() {
		t.EtherType = unix.ETH_P_IPV6
	}
	return t
}
