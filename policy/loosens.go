package policy

import (
	"net/netip"
	"slices"

	"boxgate/policy/name"
)

// Loosens reports whether the kernel forwards under the next plan all that it forwards under the old one, so that no
// open connection has to be ended. It errs on the side of false.
func Loosens(old, next KernelPlan) bool {
	wider := next.DefaultAllow || !old.DefaultAllow && covers(next.Allowed, old.Allowed)
	if old.Sourced != next.Sourced || old.Source != next.Source { // what is open leaves from elsewhere
		return false
	}
	return wider && covers(old.Denied, next.Denied) && covers(old.Protected, next.Protected) &&
		old.SteerAllowed.Covers(next.SteerAllowed) && old.RejectUDP.Covers(next.RejectUDP)
}

// covers reports whether every prefix of inner lies within one of outer. Of a list that is not sorted, or overlaps, it may
// miss some, but finds none that are not there.
func covers(outer, inner []netip.Prefix) bool {
	return !slices.ContainsFunc(inner, func(p netip.Prefix) bool {
		i, exact := slices.BinarySearchFunc(outer, p.Addr(), func(o netip.Prefix, a netip.Addr) int { return o.Addr().Compare(a) })
		if !exact {
			i--
		}
		return i < 0 || outer[i].Bits() > p.Bits() || !outer[i].Contains(p.Addr())
	})
}

// Forwards reports whether the kernel forwards connections to the address by itself: the address alone is allowed, and
// neither a name nor a rule can matter.
func (c *Compiled) Forwards(a netip.Addr, port uint16, protocol Protocol) bool {
	if c == nil {
		return false
	}
	if _, listed := c.allowed.Lookup(name.CanonicalAddr(a)); !listed && !c.open {
		return false
	}
	if c.ceiling != nil && !c.ceiling.Forwards(a, port, protocol) {
		return false
	}
	if protocol == TCP && c.plan.SteerAllowed.Contains(port) || protocol == UDP && c.plan.RejectUDP.Contains(port) {
		return false
	}
	return c.Decide(Request{Stage: StageKernel, Addr: a, Port: port, Protocol: protocol}).Allowed()
}
