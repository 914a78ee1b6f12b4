package selftest

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/policy"
	"boxgate/policy/name"

	"boxgate/selftest/packet"
	"boxgate/selftest/probe"
)

// ownHost adds attacks on the host: its addresses, the gateway's other ports, and canaries.
func (b *builder) ownHost(s *side) {
	const group = "the host"
	for _, c := range s.canaries {
		to := netip.AddrPortFrom(c.At, c.Port)
		if c.At == s.loopback {
			b.add(s, group, "UDP to its loopback address", to.String(), func(a *attack) {
				a.send(b.udpFrame(s, to, a.task.Token))
				a.refused(name.ReasonHostPort, name.ReasonProtectedRange)
				a.canary, a.to, a.matches = c, to, inKernel(policy.UDP, to)
				if s.box.Is6() { // the kernel drops ::1 from outside before any rule sees it
					a.reasons, a.Expected = nil, "dropped"
				}
			})
			continue
		}
		b.add(s, group, "TCP to a listening port", to.String(), func(a *attack) {
			a.send(connect(to, a.task.Token))
			a.refused(name.ReasonHostPort)
			a.canary, a.to, a.matches = c, to, inKernel(policy.TCP, to)
		})
		b.add(s, group, "UDP to a listening port", to.String(), func(a *attack) {
			a.send(probe.Task{Kind: probe.UDP, To: to, Data: [][]byte{a.task.Token}})
			a.refused(name.ReasonHostPort)
			a.canary, a.to, a.matches = c, to, inKernel(policy.UDP, to)
		})
	}
	for _, at := range append([]netip.Addr{s.gateway}, s.host...) {
		for _, p := range b.cfg.HostPorts {
			to := netip.AddrPortFrom(at, p.Port)
			b.add(s, group, p.Name, to.String(), func(a *attack) {
				a.send(connect(to, httpRequest("GET", "/", to.String(), a.task.Token)))
				a.refused(name.ReasonHostPort)
				a.to, a.matches = to, inKernel(policy.TCP, to)
			})
		}
	}
	sink := netip.AddrPortFrom(s.sink, 4242)
	b.add(s, group, "UDP to the sink", sink.String(), func(a *attack) {
		a.send(probe.Task{Kind: probe.UDP, To: sink, Data: [][]byte{a.task.Token}})
		a.refused(name.ReasonNotAllowed, name.ReasonDenyAll, name.ReasonProtectedRange)
		a.to, a.matches = sink, inKernel(policy.UDP, sink)
	})
}

// otherBoxes adds attacks on a neighbour: another box, or an address that the next box will get.
func (b *builder) otherBoxes(s *side) {
	const group = "other boxes"
	for _, t := range []struct {
		name  string
		proto policy.Protocol
		port  uint16
	}{{"TCP", policy.TCP, 80}, {"UDP", policy.UDP, 4242}, {"ping", policy.ICMP, 0}} {
		to := netip.AddrPortFrom(s.another, t.port)
		target := to.String()
		if t.port == 0 {
			target = to.Addr().String()
		}
		b.add(s, group, t.name, target, func(a *attack) {
			switch t.proto {
			case policy.TCP:
				a.send(connect(to, a.task.Token))
			case policy.UDP:
				a.send(probe.Task{Kind: probe.UDP, To: to, Data: [][]byte{a.task.Token}})
			case policy.ICMP:
				echo := packet.Echo(s.box, to.Addr(), framePort, a.task.Token)
				a.send(b.frame(s, packet.IP(s.box, to.Addr(), packet.ICMPProtocol(to.Addr()), echo)))
			}
			b.expectDenialAt(a, t.proto, to)
			a.matches = inKernel(t.proto, to)
		})
	}
	b.add(s, group, "claim another's address on the link", s.another.String(), func(a *attack) {
		a.Expected = "the host's neighbour table stays as it is"
		t := b.frame(s)
		if s.box.Is4() {
			t.EtherType, t.Data = unix.ETH_P_ARP, [][]byte{packet.ARPClaim(s.another, b.cfg.mac), packet.ARPClaim(s.gateway, b.cfg.mac)}
		} else {
			t.Data = [][]byte{packet.NeighbourClaim(s.box, s.gateway, s.another, b.cfg.mac)}
		}
		a.send(t)
		a.judge = func(r probe.Answer) (string, bool) { return "sent", false }
		a.inspect = func() (string, bool) { return b.cfg.neighbours(s) }
	})
}

// forgedSources adds attacks with forged source addresses, to destinations that the policy may even allow.
func (b *builder) forgedSources(s *side) {
	sources := []struct {
		what string
		addr netip.Addr
	}{{"another box's address", s.another}, {"the gateway's address", s.gateway}, {"a stranger's address", s.stranger()}}
	if len(s.host) > 0 {
		sources = append(sources, struct {
			what string
			addr netip.Addr
		}{"the host's address", s.host[0]})
	}
	if s.box.Is4() { // the kernel itself drops ::1 from outside
		sources = append(sources, struct {
			what string
			addr netip.Addr
		}{"a loopback address", s.loopback})
	}
	for _, src := range sources {
		to := netip.AddrPortFrom(s.stranger(), 4242)
		b.add(s, "forged sources", src.what, to.String(), func(a *attack) {
			a.send(b.frame(s, b.datagram(src.addr, to, a.task.Token)))
			a.refused(name.ReasonSpoofed)
			a.to, a.exclusive, a.matches = to, true, inKernel(policy.UDP, to)
		})
	}
}

// neighbours reports whether the host's neighbour table maps another address to the box's MAC address.
func (c *Config) neighbours(s *side) (string, bool) {
	all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return "the neighbour table cannot be read", true
	}
	for _, n := range all {
		a, _ := netip.AddrFromSlice(n.IP)
		claimed := a.Unmap() == s.another || a.Unmap() == s.gateway
		if claimed && string(n.HardwareAddr) == string(c.mac) {
			return "the host BELIEVES that " + a.String() + " is the box", true
		}
	}
	return "no entry was made", false
}
