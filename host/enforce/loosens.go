package enforce

import (
	"net/netip"
	"slices"

	"boxgate/policy"
)

// loosens reports whether the kernel forwards under the new plan all that it forwards under the old one.
func loosens(old, next policy.KernelPlan) bool {
	wider := next.DefaultAllow || !old.DefaultAllow && covers(next.Allowed, old.Allowed)
	return wider && covers(old.Denied, next.Denied) && covers(old.Protected, next.Protected) &&
		portsWithin(next.SteerAllowed, old.SteerAllowed) && portsWithin(next.RejectUDP, old.RejectUDP)
}

// covers reports whether every prefix of inner lies within one of outer.
func covers(outer, inner []netip.Prefix) bool {
	return !slices.ContainsFunc(inner, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(outer, func(o netip.Prefix) bool {
			return o.Bits() <= p.Bits() && o.Contains(p.Addr())
		})
	})
}

// portsWithin reports whether every port of inner is in outer.
func portsWithin(inner, outer policy.PortSet) bool {
	if outer.All {
		return true
	}
	return !inner.All && !slices.ContainsFunc(inner.Ports, func(p uint16) bool { return !outer.Contains(p) })
}
