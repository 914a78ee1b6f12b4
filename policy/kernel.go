package policy

import (
	"net/netip"
	"slices"

	"boxgate/policy/name"
)

// KernelPlan is the part of a policy that nftables enforces. For a new packet the first applicable rule decides: TCP to Cluster goes to
// the proxy; Protected: refuse; Denied: refuse; Allowed, or in no list with DefaultAllow: the address is allowed, so TCP to a port of
// SteerAllowed goes to the proxy, UDP to a port of RejectUDP is rejected, and the rest is forwarded; otherwise TCP to a
// port of SteerOther goes to the proxy, and the rest is refused. While a policy is audited, DefaultAllow is set, and an address in no list
// is judged by SteerOther and RejectOther instead. Decide allows everything that the plan forwards by address.
//
// The zero value refuses everything. Prefixes are of both families, masked, merged and sorted, and do not overlap within
// a list.
type KernelPlan struct {
	Version      uint64
	DefaultAllow bool           // addresses in no list are allowed (allow-all, custom with denied lists only)
	Allowed      []netip.Prefix // allowed_cidrs, with the NAT64 (64:ff9b::/96) forms of IPv4 ones
	Denied       []netip.Prefix // denied_cidrs, likewise; wins over Allowed
	Protected    []netip.Prefix // protected ranges without exemptions, likewise; wins over all
	SteerAllowed name.PortSet   // TCP ports that go to the proxy although the address is allowed
	SteerOther   name.PortSet   // TCP ports that go to the proxy if the address is neither allowed nor denied
	RejectOther  name.PortSet   // with DefaultAllow: UDP ports that are also rejected if the address is in no list
	RejectUDP    name.PortSet   // UDP ports that are rejected by ICMP even where the address is allowed: QUIC would bypass a name or rule
	Cluster      []netip.Prefix // service addresses of the cluster, wherever the policy lists some: the proxy decides, and the rest is in Protected
	Sourced      bool           // traffic is forwarded from the addresses of Source only; families without one are refused
	Source       Source
}

// findPorts finds the hosts of rules, and the ports where names matter although the address is allowed.
func (c *Compiled) findPorts(parsed parsedSpec, headers []HeaderRule) {
	for _, rule := range parsed.rules {
		c.ruled = append(c.ruled, rule.Hosts...)
	}
	for _, h := range headers {
		if h.Applies() {
			c.ruled = append(c.ruled, h.key())
		}
	}
	for _, p := range c.ruled {
		c.namePorts.Add(p.Port())
		if p.Port() != 0 {
			c.ruledPorts.Add(p.Port())
		} else {
			c.ruledPorts.Add(name.HTTPPort)
			c.ruledPorts.Add(name.HTTPSPort)
		}
	}
	for _, d := range slices.Concat(parsed.deniedDomains, parsed.overrulingDomains) {
		c.namePorts.Add(d.pattern.Port())
	}
}

func (c *Compiled) newKernelPlan(parsed parsedSpec) KernelPlan {
	plan := KernelPlan{
		Version:      c.version,
		DefaultAllow: c.open,
		Allowed:      c.allowed.Merged(),
		Denied:       c.denied.Merged(),
		Protected:    c.protected.Prefixes(),
		SteerAllowed: c.namePorts.Clone(),
	}
	for _, p := range c.ruled {
		plan.rejectQUIC(p.Port())
	}
	if plan.SteerAllowed.Contains(portQUIC) {
		plan.rejectQUIC(portQUIC)
	}
	if c.open {
		// Addresses in no list are allowed here, so both sets are the same. DNS over TLS or QUIC is for allowed_cidrs only,
		// and an open policy has no allowed_cidrs.
		plan.SteerAllowed.Add(portDoT)
		plan.RejectUDP.Add(portDoT)
		plan.SteerOther = plan.SteerAllowed.Clone()
		return plan
	}
	// Web traffic is refused by the proxy, so that the refusal has the name.
	plan.SteerOther.Add(name.HTTPPort)
	plan.SteerOther.Add(name.HTTPSPort)
	for _, d := range parsed.allowedDomains {
		if d.pattern.IsService() { // reached at the sink
			continue
		}
		plan.SteerOther.Add(d.pattern.Port())
		if d.pattern.Port() == 0 || d.pattern.Port() == portQUIC {
			plan.rejectQUIC(portQUIC)
		}
	}
	return plan
}

// rejectQUIC adds the port of a rule that judges or changes requests. 0, every port, adds the port of HTTP/3 only: other
// protocols over UDP have no hosts, and a rule without a port does not block them.
func (p *KernelPlan) rejectQUIC(port uint16) {
	if port == 0 {
		port = portQUIC
	}
	p.RejectUDP.Add(port)
}

// Fate is the handling of a new packet by the kernel. The zero value refuses it.
type Fate uint8

// The fates.
const (
	Refused   Fate = iota
	Forwarded      // without the proxy
	Steered        // to the proxy, which decides
)

// Fate returns the handling of a new packet.
func (p *KernelPlan) Fate(a netip.Addr, port uint16, protocol Protocol) Fate {
	a = a.Unmap()
	if !a.IsValid() {
		return Refused
	}
	at := []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
	switch {
	case protocol == TCP && covers(p.Cluster, at):
		return Steered
	case covers(p.Protected, at), covers(p.Denied, at):
		return Refused
	case protocol == UDP && p.RejectUDP.Contains(port):
		return Refused
	case covers(p.Allowed, at):
		if protocol == TCP && p.SteerAllowed.Contains(port) {
			return Steered
		}
		return Forwarded
	case protocol == UDP && p.RejectOther.Contains(port):
		return Refused
	case protocol == TCP && p.SteerOther.Contains(port):
		return Steered
	case p.DefaultAllow:
		return Forwarded
	}
	return Refused
}

// WithoutForwarding returns the plan of a gateway that forwards no packets: TCP to allowed addresses goes to the proxy on every
// port, and UDP to them is rejected. It refuses at least as much as p.
func (p KernelPlan) WithoutForwarding() KernelPlan {
	p.SteerAllowed = name.PortSet{All: true}
	p.RejectUDP = name.PortSet{All: true}
	if p.DefaultAllow {
		p.SteerOther = name.PortSet{All: true}
	}
	return p
}

// Loosens reports whether the kernel forwards under the next plan everything that it forwards under the old one, so that no
// open connection must be cut. False negatives are possible.
func Loosens(old, next KernelPlan) bool {
	wider := next.DefaultAllow || !old.DefaultAllow && covers(next.Allowed, old.Allowed)
	if old.Sourced != next.Sourced || old.Source != next.Source { // open connections have another source address
		return false
	}
	return wider && covers(old.Cluster, next.Cluster) && covers(old.Denied, next.Denied) && covers(old.Protected, next.Protected) &&
		old.SteerAllowed.Covers(next.SteerAllowed) && old.RejectUDP.Covers(next.RejectUDP) && loosensOther(old, next)
}

// loosensOther is Loosens for addresses in no list of the next plan.
func loosensOther(old, next KernelPlan) bool {
	switch {
	case !next.DefaultAllow:
		return true
	case old.DefaultAllow:
		return old.SteerOther.Covers(next.SteerOther) && old.RejectUDP.With(old.RejectOther).Covers(next.RejectOther) && covers(next.Allowed, old.Allowed)
	case covers(next.Allowed, old.Allowed):
		return true
	}
	return old.SteerAllowed.Covers(next.SteerOther) && old.RejectUDP.Covers(next.RejectOther)
}

// covers reports whether every prefix of inner is within a prefix of outer. If a list is not sorted or overlaps, false
// negatives are possible.
func covers(outer, inner []netip.Prefix) bool {
	return !slices.ContainsFunc(inner, func(p netip.Prefix) bool {
		i, exact := slices.BinarySearchFunc(outer, p.Addr(), func(o netip.Prefix, a netip.Addr) int { return o.Addr().Compare(a) })
		if !exact {
			i--
		}
		return i < 0 || outer[i].Bits() > p.Bits() || !outer[i].Contains(p.Addr())
	})
}

// Forwards reports whether the kernel forwards connections to the address without the proxy: the address is allowed, and
// neither names nor rules matter.
func (c *Compiled) Forwards(a netip.Addr, port uint16, protocol Protocol) bool {
	if c == nil {
		return false
	}
	_, listed := c.allowed.Lookup(name.CanonicalAddr(a))
	if c.auditing != nil {
		return c.auditing.enforced.Forwards(a, port, protocol) || c.plan.DefaultAllow && !c.open && !listed && protocol != TCP &&
			c.Decide(Request{Stage: StageKernel, Addr: a, Port: port, Protocol: protocol}).Allowed()
	}
	if !listed && !c.open {
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
