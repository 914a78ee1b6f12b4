package policy

import "net/netip"

// Protected is an immutable snapshot of the addresses that no policy can open: what the IANA special-purpose registries
// mark not globally reachable, multicast, and the host's and boxes' own addresses, minus what the operator exempted. A
// nil *Protected protects everything. Safe for concurrent use.
type Protected struct {
	ranges  ranges
	merged  []netip.Prefix
	forward *Protected // for connections to the proxies that rules forward to; nil: the same
}

// NewProtected makes a snapshot. own are the addresses of the host and the pools of the boxes. exempt are the
// operator's exceptions: each is taken out of the special-purpose ranges whatever its size, but out of an own range
// only if it lies inside that range. Exempting 10.0.0.0/8 therefore opens neither the host's 10.0.0.5 nor a pool in
// it; exempting 10.0.0.5/32 does open that address. Host bits are masked, invalid prefixes ignored in exempt and, in
// own, taken to mean everything.
func NewProtected(exempt, own []netip.Prefix) *Protected {
	exempt = validPrefixes(exempt)
	p := &Protected{}
	for _, s := range specialPurpose {
		rule := s.prefix.String() + " (" + s.what + ")"
		for _, left := range subtractAll(s.prefix, exempt) {
			p.ranges.addDenied(left, rule)
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
			p.ranges.addDenied(left, rule)
		}
	}
	// Decisions see IPv4-mapped addresses as IPv4. Packets to them are IPv6 and meaningless, and no exemption applies
	// to them.
	p.ranges.addDenied(mapped, mapped.String()+" (IPv4-mapped)")
	p.merged = p.ranges.merged()
	return p
}

// WithForwarding sets the ranges that are protected from connections to the proxies that rules forward to, and returns p,
// which is not in use yet.
func (p *Protected) WithForwarding(f *Protected) *Protected {
	p.forward = f
	return p
}

// forForwarding returns these ranges.
func (p *Protected) forForwarding() *Protected {
	if p == nil || p.forward == nil {
		return p
	}
	return p.forward
}

// Contains reports whether a is protected, and by which range. An invalid address is protected. The IPv4 inside an
// IPv4-mapped or NAT64 address is judged as itself; 6to4, Teredo and the local-use NAT64 range are protected as a
// whole.
func (p *Protected) Contains(a netip.Addr) (rule string, protected bool) {
	if p == nil || !a.IsValid() {
		return "", true
	}
	return p.ranges.lookup(canonicalAddr(a))
}

// prefixes returns the set for the kernel: both families, merged, in order.
func (p *Protected) prefixes() []netip.Prefix {
	if p == nil {
		return everything[:]
	}
	return p.merged
}

// prefix reports whether every address of q is protected, and by which range.
func (p *Protected) prefix(q netip.Prefix) (rule string, protected bool) {
	if p == nil {
		return "", true
	}
	return p.ranges.table.LookupPrefix(q)
}

func (p *Protected) addEverything() {
	for _, all := range everything {
		p.ranges.addDenied(all, all.String()+" (host address unknown)")
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

// inside returns the prefixes of ps that lie in q.
func inside(ps []netip.Prefix, q netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range ps {
		if p.Bits() >= q.Bits() && p.Overlaps(q) {
			out = append(out, p)
		}
	}
	return out
}
