package policy

import (
	"net/netip"
	"slices"
)

// PortSet is a set of ports.
type PortSet struct {
	All   bool     // every port; Ports is empty then
	Ports []uint16 // sorted, no duplicates
}

// Contains reports whether a port is in the set.
func (s PortSet) Contains(port uint16) bool {
	if s.All {
		return true
	}
	_, found := slices.BinarySearch(s.Ports, port)
	return found
}

// add adds a port; 0 stands for every port.
func (s *PortSet) add(port uint16) {
	switch i, found := slices.BinarySearch(s.Ports, port); {
	case s.All || found:
	case port == 0:
		s.All, s.Ports = true, nil
	default:
		s.Ports = slices.Insert(s.Ports, i, port)
	}
}

func (s PortSet) clone() PortSet { return PortSet{s.All, slices.Clone(s.Ports)} }

// KernelPlan is what nftables enforces by itself. For a new packet the first of these that applies decides: Protected:
// refuse; Denied: refuse; Allowed, or in no list while DefaultAllow: the address is allowed, so TCP on a port of
// SteerAllowed goes to the proxy, UDP to a port of RejectUDP is rejected, and the rest is forwarded; anything else: TCP on a
// port of SteerOther goes to the proxy, the rest is refused. What the plan forwards, Decide allows by address.
//
// The zero value refuses everything. Prefixes are of both families, masked, merged, sorted, and do not overlap within
// a list.
type KernelPlan struct {
	Version      uint64
	DefaultAllow bool           // addresses in no list are allowed (allow-all, custom with denied lists only)
	Allowed      []netip.Prefix // allowed_cidrs, with the NAT64 (64:ff9b::/96) forms of those that are IPv4
	Denied       []netip.Prefix // denied_cidrs, likewise; wins over Allowed
	Protected    []netip.Prefix // protected ranges, likewise, exemptions taken out; wins over all
	SteerAllowed PortSet        // TCP ports that go to the proxy although the address alone is allowed
	SteerOther   PortSet        // TCP ports that go to the proxy where the address is neither allowed nor denied
	RejectUDP    PortSet        // UDP ports that are rejected by ICMP even where the address is allowed: QUIC would bypass a name or rule
	Sourced      bool           // what is forwarded leaves from Source alone, and what is of a family without an address there is refused
	Source       Source
}

// findPorts notes the hosts of rules, and on which ports names matter where the address alone is allowed.
func (c *Compiled) findPorts(parsed parsedSpec, headers []HeaderRule) {
	for _, rule := range parsed.rules {
		c.ruled = append(c.ruled, rule.hosts...)
	}
	for _, h := range headers {
		if h.Applies() {
			c.ruled = append(c.ruled, h.key())
		}
	}
	for _, p := range c.ruled {
		c.namePorts.add(p.port)
		if p.port != 0 {
			c.ruledPorts.add(p.port)
		} else {
			c.ruledPorts.add(defaultHTTPPort)
			c.ruledPorts.add(defaultTLSPort)
		}
	}
	for _, d := range parsed.deniedDomains {
		c.namePorts.add(d.pattern.port)
	}
}

func (c *Compiled) newKernelPlan(parsed parsedSpec) KernelPlan {
	plan := KernelPlan{
		Version:      c.version,
		DefaultAllow: c.open,
		Allowed:      c.allowed.merged(),
		Denied:       c.denied.merged(),
		Protected:    c.protected.prefixes(),
		SteerAllowed: c.namePorts.clone(),
	}
	for _, p := range c.ruled {
		plan.rejectQUIC(p.port)
	}
	if plan.SteerAllowed.Contains(portQUIC) {
		plan.rejectQUIC(portQUIC)
	}
	if c.open {
		// Addresses in no list are allowed here, so both sets are the same. DNS over TLS or QUIC is for allowed_cidrs
		// alone, of which there are none.
		plan.SteerAllowed.add(portDoT)
		plan.RejectUDP.add(portDoT)
		plan.SteerOther = plan.SteerAllowed.clone()
		return plan
	}
	// Web traffic is refused by name, so that the refusal says which.
	plan.SteerOther.add(defaultHTTPPort)
	plan.SteerOther.add(defaultTLSPort)
	for _, d := range parsed.allowedDomains {
		plan.SteerOther.add(d.pattern.port)
		if d.pattern.port == 0 || d.pattern.port == portQUIC {
			plan.rejectQUIC(portQUIC)
		}
	}
	return plan
}

// rejectQUIC adds the port of a rule by which requests are judged or changed. 0, every port, stands for that of HTTP/3:
// other protocols over UDP have no hosts, and a rule that names no port does not block them.
func (p *KernelPlan) rejectQUIC(port uint16) {
	if port == 0 {
		port = portQUIC
	}
	p.RejectUDP.add(port)
}
