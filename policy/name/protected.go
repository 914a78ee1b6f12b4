package name

import "net/netip"

// Protected is an immutable snapshot of the addresses that no policy can allow: the ranges that the IANA special-purpose
// registries mark not globally reachable, multicast, and the addresses of the host and the boxes, minus the exemptions of the
// operator. A nil *Protected protects every address. Safe for concurrent use.
type Protected struct {
	ranges  Ranges
	merged  []netip.Prefix
	forward *Protected // for connections to the proxies of rules that forward; nil: the same
}

// NewProtected makes a snapshot. own are the addresses of the host and the pools of the boxes. exempt are the
// exemptions of the operator: each is subtracted from the special-purpose ranges, but from a range in own only if it is
// inside that range. Exempting 10.0.0.0/8 therefore allows neither the host's 10.0.0.5 nor a pool within it; exempting
// 10.0.0.5/32 does allow that address. Host bits are masked. Invalid prefixes are ignored in exempt, and protect
// everything in own.
func NewProtected(exempt, own []netip.Prefix) *Protected {
	exempt = validPrefixes(exempt)
	p := &Protected{}
	for _, s := range specialPurpose {
		rule := s.prefix.String() + " (" + s.what + ")"
		for _, left := range subtractAll(s.prefix, exempt) {
			p.ranges.AddDenied(left, rule)
		}
	}
	for _, o := range own {
		if !o.IsValid() {
			p.addEverything()
			continue
		}
		o = unmapPrefix(o).Masked()
		rule := o.String() + " (host or boxes)"
		for _, left := range subtractAll(o, inside(exempt, o)) {
			p.ranges.AddDenied(left, rule)
		}
	}
	// Decisions treat IPv4-mapped addresses as IPv4. IPv6 packets to such addresses are invalid, and no exemption applies
	// to them.
	p.ranges.AddDenied(mapped, mapped.String()+" (IPv4-mapped)")
	p.merged = p.ranges.Merged()
	return p
}

// WithForwarding sets the ranges for connections to the proxies of rules that forward, and returns p. It must not be called
// once p is in use.
func (p *Protected) WithForwarding(f *Protected) *Protected {
	p.forward = f
	return p
}

// Forwarding returns the ranges for connections to the proxies of rules that forward.
func (p *Protected) Forwarding() *Protected {
	if p == nil || p.forward == nil {
		return p
	}
	return p.forward
}

// Contains reports whether a is protected, and the range. An invalid address is protected. An IPv4-mapped or NAT64 address
// is protected if its IPv4 address is. 6to4, Teredo and the local-use NAT64 range are protected as a whole.
func (p *Protected) Contains(a netip.Addr) (rule string, protected bool) {
	if p == nil || !a.IsValid() {
		return "", true
	}
	return p.ranges.Lookup(CanonicalAddr(a))
}

// Prefixes returns the set for the kernel: both families, merged, in order.
func (p *Protected) Prefixes() []netip.Prefix {
	if p == nil {
		return everything[:]
	}
	return p.merged
}

// CoveredBy reports whether every address of q is protected, and the range.
func (p *Protected) CoveredBy(q netip.Prefix) (rule string, protected bool) {
	if p == nil {
		return "", true
	}
	return p.ranges.CoveredBy(q)
}

func (p *Protected) addEverything() {
	for _, all := range everything {
		p.ranges.AddDenied(all, all.String()+" (host address unknown)")
	}
}

var mapped = netip.MustParsePrefix("::ffff:0:0/96")

var everything = [...]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

func validPrefixes(ps []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(ps))
	for _, p := range ps {
		if p.IsValid() {
			out = append(out, unmapPrefix(p).Masked())
		}
	}
	return out
}

// inside returns the prefixes of ps that are within q.
func inside(ps []netip.Prefix, q netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range ps {
		if p.Bits() >= q.Bits() && p.Overlaps(q) {
			out = append(out, p)
		}
	}
	return out
}

// specialRange is one line of the table below.
type specialRange struct {
	prefix netip.Prefix
	what   string
}

// specialPurpose lists the ranges that the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890 and its
// updates) mark not globally reachable, multicast, and a few equivalent ranges that are in no registry. The
// small globally reachable exceptions inside 192.0.0.0/24 and 2001::/23 (PCP and TURN anycast, ORCHIDv2 and the like)
// are kept: they are addresses of the next router or of no machine at all.
var specialPurpose = []specialRange{
	{netip.MustParsePrefix("0.0.0.0/8"), "this network"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "shared address space"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("168.63.129.16/32"), "cloud metadata"}, // Azure's host agent, on a public address
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.0.0.0/24"), "IETF protocol assignments"},
	{netip.MustParsePrefix("192.0.2.0/24"), "documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "6to4 relay"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("198.18.0.0/15"), "benchmarking"},
	{netip.MustParsePrefix("198.51.100.0/24"), "documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "documentation"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},

	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("::/96"), "IPv4-compatible"}, // RFC 4291 2.5.5.1, deprecated
	{mapped, "IPv4-mapped"},
	{netip.MustParsePrefix("::ffff:0:0:0/96"), "IPv4-translated"}, // RFC 2765
	{netip.MustParsePrefix("64:ff9b:1::/48"), "local-use NAT64"},  // RFC 8215
	{netip.MustParsePrefix("100::/64"), "discard"},
	{netip.MustParsePrefix("100:0:0:1::/64"), "dummy"},
	{netip.MustParsePrefix("2001::/32"), "Teredo"},
	{netip.MustParsePrefix("2001::/23"), "IETF protocol assignments"},
	{netip.MustParsePrefix("2001:db8::/32"), "documentation"},
	{netip.MustParsePrefix("2002::/16"), "6to4"},
	{netip.MustParsePrefix("3fff::/20"), "documentation"},
	{netip.MustParsePrefix("5f00::/16"), "segment routing"},
	{netip.MustParsePrefix("fc00::/7"), "unique local"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "site-local"}, // RFC 3879, deprecated, still routed inside some sites
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// SpecialPurpose returns the special-purpose ranges, which are protected unless the operator exempts them.
func SpecialPurpose() []netip.Prefix {
	out := make([]netip.Prefix, len(specialPurpose))
	for i, s := range specialPurpose {
		out[i] = s.prefix
	}
	return out
}
