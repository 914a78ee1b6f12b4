package selftest

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"boxgate/selftest/packet"
	"boxgate/selftest/probe"
)

// connect is a task that connects and sends.
func connect(to netip.AddrPort, data ...[]byte) probe.Task {
	return probe.Task{Kind: probe.TCP, To: to, Data: data}
}

// send replaces what an attack does and keeps its number and token.
func (a *attack) send(t probe.Task) {
	t.ID, t.Token = a.task.ID, a.task.Token
	a.task = t
}

// udpFrame is a datagram of the box as a whole packet.
func (b *builder) udpFrame(s *side, to netip.AddrPort, payload []byte) probe.Task {
	return b.frame(s, b.datagram(s.box, to, payload))
}

func (b *builder) datagram(src netip.Addr, to netip.AddrPort, payload []byte) []byte {
	from := netip.AddrPortFrom(src, framePort)
	return packet.IP(src, to.Addr(), unix.IPPROTO_UDP, packet.UDP(from, to, payload))
}

// framePort is the source port of what is sent as frames.
const framePort = 40404

// frame is a task that sends whole packets of a family.
func (b *builder) frame(s *side, packets ...[]byte) probe.Task {
	t := probe.Task{Kind: probe.Frame, Data: packets, EtherType: unix.ETH_P_IP}
	if s.box.Is6() {
		t.EtherType = unix.ETH_P_IPV6
	}
	return t
}
