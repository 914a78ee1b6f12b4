package selftest

import (
	"net/netip"

	"boxgate/policy"
	"boxgate/policy/name"

	"boxgate/selftest/packet"
	"boxgate/selftest/probe"
)

// special are ranges that no policy opens. Each is attacked at a random address, or at the address itself.
var special = []struct {
	what, prefix string
	frame        bool // sent as a frame, because no socket would send there
	unlogged     bool // the kernel drops such packets before any rule sees them
}{
	{"cloud metadata", "169.254.169.254/32", false, false},
	{"cloud metadata (host agent)", "168.63.129.16/32", false, false},
	{"link-local", "169.254.0.0/16", false, false},
	{"private 10/8", "10.0.0.0/8", false, false},
	{"private 172.16/12", "172.16.0.0/12", false, false},
	{"private 192.168/16", "192.168.0.0/16", false, false},
	{"shared address space", "100.64.0.0/10", false, false},
	{"IETF protocol assignments", "192.0.0.0/24", false, false},
	{"documentation", "203.0.113.0/24", false, false},
	{"benchmarking", "198.18.0.0/15", false, false},
	{"this network", "0.0.0.0/32", true, false},
	{"loopback from outside", "127.0.0.1/32", true, false},
	{"multicast", "224.0.0.0/8", true, false},
	{"reserved", "240.0.0.0/8", true, false},
	{"broadcast", "255.255.255.255/32", true, false},

	{"cloud metadata", "fd00:ec2::254/128", false, false},
	{"metadata inside NAT64", "64:ff9b::a9fe:a9fe/128", false, false},
	{"private inside NAT64", "64:ff9b::10.0.0.0/104", false, false},
	{"local-use NAT64", "64:ff9b:1::/48", false, false},
	{"metadata inside 6to4", "2002:a9fe:a9fe::/48", false, false},
	{"Teredo", "2001::/32", false, false},
	{"unique local", "fd00::/8", false, false},
	{"site-local", "fec0::/10", false, false},
	{"documentation", "2001:db8::/32", false, false},
	{"discard", "100::/64", false, false},
	{"segment routing", "5f00::/16", false, false},
	{"metadata inside IPv4-compatible", "::a9fe:a9fe/128", true, false},
	{"metadata inside IPv4-translated", "::ffff:0:a9fe:a9fe/128", true, false},
	{"link-local", "fe80::1/128", true, false},
	{"multicast", "ff02::1/128", true, false},
	{"unspecified", "::/128", true, false},
	{"metadata inside IPv4-mapped", "::ffff:a9fe:a9fe/128", true, false},
	{"loopback from outside", "::1/128", true, true},
}

// specialPort is the port of metadata services.
const specialPort = 80

// specialAddresses adds attacks on the protected ranges.
func (b *builder) specialAddresses(s *side) {
	for _, r := range special {
		prefix := netip.MustParsePrefix(r.prefix)
		if prefix.Addr().Is4() != s.box.Is4() {
			continue
		}
		to := netip.AddrPortFrom(randomIn(prefix), specialPort)
		b.add(s, "protected addresses", r.what, to.String(), func(a *attack) {
			proto := policy.TCP
			a.send(connect(to, httpRequest("GET", "/", to.String(), a.task.Token)))
			if r.frame {
				proto = policy.UDP
				a.send(b.udpFrame(s, to, a.task.Token))
			}
			// Multicast, broadcast and loopback are refused as destinations of the host first.
			b.expectDenialAt(a, proto, to, name.ReasonHostPort)
			switch {
			case a.Verdict == Skipped:
			case a.reasons[0] == name.ReasonProtectedRange:
				a.matches = inKernel(proto, to)
			default: // exempted by the operator, so refused like any other address
				a.reasons, a.judge = concat(a.reasons, unnamed...), b.refusedByProxy
			}
			a.exclusive = !prefix.IsSingleIP()
			if r.unlogged && a.Verdict != Skipped {
				a.reasons, a.Expected = nil, "dropped"
			}
		})
	}
}

// otherAddresses adds attacks on addresses that no list of the policy contains.
func (b *builder) otherAddresses(s *side) {
	const group = "addresses not allowed"
	tcp := func(name string, port uint16, also ...name.Reason) {
		to := netip.AddrPortFrom(s.stranger(), port)
		b.add(s, group, name, to.String(), func(a *attack) {
			a.send(connect(to, append([]byte("boxgate selftest "), a.task.Token...)))
			b.expectDenialAt(a, policy.TCP, to, concat(unnamed, also...)...)
			a.exclusive, a.judge = true, b.refusedByProxy
		})
	}
	tcp("TCP to any port", 4242)
	tcp("SSH", 22)
	tcp("raw bytes on 443", 443)
	tcp("raw bytes on 80", 80, name.ReasonBadRequest)
	tcp("DNS over TLS", 853)
	udp := func(n string, port uint16) {
		to := netip.AddrPortFrom(s.stranger(), port)
		b.add(s, group, n, to.String(), func(a *attack) {
			a.send(probe.Task{Kind: probe.UDP, To: to, Data: [][]byte{a.task.Token}})
			b.expectDenialAt(a, policy.UDP, to, name.ReasonProtocol)
			a.exclusive = true
		})
	}
	udp("UDP to any port", 4242)
	udp("QUIC", 443)
	to := s.stranger()
	b.add(s, group, "ping with a payload", to.String(), func(a *attack) {
		ping := packet.IP(s.box, to, packet.ICMPProtocol(to), packet.Echo(s.box, to, framePort, a.task.Token))
		a.send(b.frame(s, ping))
		b.expectDenialAt(a, policy.ICMP, netip.AddrPortFrom(to, 0))
		a.exclusive = true
	})
}
