package selftest

import (
	"net/netip"
	"slices"
	"time"

	"boxgate/audit"
	"boxgate/policy/name"

	"boxgate/selftest/probe"
	"boxgate/selftest/watch"
)

const (
	maxHostAddrs = 3                      // of each family: a host may have hundreds
	loggedAtOnce = 15                     // the kernel logs bursts of 20 of each reason
	loggedEvery  = 130 * time.Millisecond // and then 10 a second
)

// build builds the list of attacks.
func (b *builder) build(prefix []byte) error {
	c := b.cfg
	stranger4, stranger6 := strangers("8.8.8.0/24"), strangers("2001:4860:4860::/64")
	b.sides = []*side{
		{family: "ipv4", box: c.V4, gateway: c.GatewayV4, sink: c.SinkV4, another: c.AnotherV4,
			loopback: netip.AddrFrom4([4]byte{127, 0, 0, 1}), stranger: stranger4},
		{family: "ipv6", box: c.V6, gateway: c.GatewayV6, sink: c.SinkV6, another: c.AnotherV6,
			loopback: netip.IPv6Loopback(), stranger: stranger6},
	}
	for _, s := range b.sides {
		for _, a := range c.HostAddrs {
			if a.Is4() == s.box.Is4() && len(s.host) < maxHostAddrs {
				s.host = append(s.host, a)
			}
		}
		for _, at := range append([]netip.Addr{s.gateway, s.loopback}, s.host...) {
			trap, err := watch.OpenCanary(at, prefix, c.V4, c.V6)
			if err != nil {
				return err
			}
			s.canaries = append(s.canaries, trap)
		}
		for _, group := range []func(*side){
			b.specialAddresses, b.ownHost, b.otherBoxes, b.forgedSources, b.oddPackets, b.otherAddresses, b.names,
			b.queries, b.explicit,
		} {
			group(s)
		}
	}
	b.pace()
	return nil
}

// pace spreads attacks that are refused for the same reason over time, so that the kernel logs each one.
func (b *builder) pace() {
	count := map[name.Reason]int{}
	for _, a := range b.attacks {
		if a.Verdict == Skipped || len(a.reasons) == 0 {
			continue
		}
		n := count[a.reasons[0]]
		count[a.reasons[0]] += max(1, len(a.task.Data)) // frames are packets
		if a.task.Kind != probe.Frame {
			count[a.reasons[0]] = n + 1
		}
		a.task.After = time.Duration(max(0, n-loggedAtOnce)) * loggedEvery
	}
}

// expected returns the denials that the attacks cause if the box is tight: one per attack, or one per packet.
func (b *builder) expected() []audit.Expected {
	var out []audit.Expected
	for _, a := range b.attacks {
		if a.Verdict == Skipped || a.matches == nil {
			continue
		}
		events := 1
		if a.task.Kind == probe.Frame {
			events = max(1, len(a.task.Data))
		}
		out = append(out, audit.Expected{Count: events, Match: func(e audit.Event) bool {
			return (len(a.reasons) == 0 || slices.Contains(a.reasons, e.Reason)) && a.matches(e)
		}})
	}
	return out
}

// watched returns the addresses that only attacks send to.
func (b *builder) watched() []netip.Addr {
	var out []netip.Addr
	for _, a := range b.attacks {
		if a.exclusive && a.Verdict != Skipped {
			out = append(out, a.to.Addr())
		}
	}
	return out
}

func (b *builder) closeCanaries() {
	for _, s := range b.sides {
		for _, c := range s.canaries {
			c.Close()
		}
	}
}
