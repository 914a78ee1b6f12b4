package name

import (
	"net/netip"
	"strings"

	"github.com/gaissmai/bart"
)

// nat64 is the well-known prefix for IPv4 addresses in IPv6 (RFC 6052): the last 32 bits are the IPv4 address.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Ranges is a set of prefixes of both families, each with its rule. An IPv4 prefix includes its NAT64 form. In a set of
// allowed ranges, an IPv6 prefix wider than the NAT64 prefix does not include that. So decisions and the kernel use the
// same set without translation.
type Ranges struct {
	table bart.Table[string]
}

// Lookup returns the rule of the most specific prefix that contains a, which must be canonical (see [CanonicalAddr]).
func (r *Ranges) Lookup(a netip.Addr) (rule string, ok bool) { return r.table.Lookup(a) }

// Insert keeps the first of two rules for the same prefix.
func (r *Ranges) Insert(p netip.Prefix, rule string) {
	if _, taken := r.table.Get(p); !taken {
		r.table.Insert(p, rule)
	}
}

// AddDenied adds p, and for IPv4 its NAT64 form. An IPv6 prefix includes the NAT64 addresses within it.
func (r *Ranges) AddDenied(p netip.Prefix, rule string) {
	r.Insert(p, rule)
	if p.Addr().Is4() {
		r.Insert(translated(p), rule)
	}
}

// AddAllowed adds p. An IPv6 prefix allows NAT64 addresses, which are IPv4 hosts, only if it is within the NAT64 prefix.
func (r *Ranges) AddAllowed(p netip.Prefix, rule string) {
	if p.Addr().Is6() && p.Bits() < nat64.Bits() {
		for _, q := range subtract(p, nat64) {
			r.Insert(q, rule)
		}
		return
	}
	r.AddDenied(p, rule)
}

// CoveredBy returns the rule of the most specific prefix that contains all of p.
func (r *Ranges) CoveredBy(p netip.Prefix) (rule string, ok bool) { return r.table.LookupPrefix(p) }

// CoversLonger reports whether a shorter prefix than p contains all of p.
func (r *Ranges) CoversLonger(p netip.Prefix) bool {
	for q := range r.table.Supernets(p) {
		if q != p {
			return true
		}
	}
	return false
}

// Overlaps reports whether some address of p is in the set.
func (r *Ranges) Overlaps(p netip.Prefix) bool { return r.table.OverlapsPrefix(p) }

// Merged returns the set as the smallest sorted list of prefixes without overlaps.
func (r *Ranges) Merged() []netip.Prefix {
	var flat bart.Lite
	for p := range r.table.All() {
		flat.Insert(p)
	}
	flat.Aggregate()
	out := make([]netip.Prefix, 0, flat.Size())
	for p := range flat.AllSorted() {
		out = append(out, p)
	}
	return out
}

// Translated returns the NAT64 form of an IPv4 prefix, and other prefixes unchanged.
func Translated(p netip.Prefix) netip.Prefix {
	if !p.Addr().Is4() {
		return p
	}
	return translated(p)
}

// translated returns the NAT64 form of an IPv4 prefix.
func translated(p netip.Prefix) netip.Prefix {
	b := nat64.Addr().As16()
	v4 := p.Addr().As4()
	copy(b[12:], v4[:])
	return netip.PrefixFrom(netip.AddrFrom16(b), 96+p.Bits())
}

// subtract returns p without the addresses of q.
func subtract(p, q netip.Prefix) []netip.Prefix {
	switch {
	case !p.Overlaps(q):
		return []netip.Prefix{p}
	case p.Bits() >= q.Bits():
		return nil
	}
	low, high := halves(p)
	return append(subtract(low, q), subtract(high, q)...)
}

// subtractAll returns p without the addresses of qs.
func subtractAll(p netip.Prefix, qs []netip.Prefix) []netip.Prefix {
	left := []netip.Prefix{p}
	for _, q := range qs {
		var next []netip.Prefix
		for _, piece := range left {
			next = append(next, subtract(piece, q)...)
		}
		left = next
	}
	return left
}

// halves splits a prefix that is not a single address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	bits := p.Bits()
	b := p.Addr().AsSlice()
	low = netip.PrefixFrom(p.Addr(), bits+1)
	b[bits/8] |= 0x80 >> (bits % 8)
	a, _ := netip.AddrFromSlice(b)
	return low, netip.PrefixFrom(a, bits+1)
}

// Untranslated returns the IPv4 address in an IPv4-mapped or NAT64 address (64:ff9b::/96, RFC 6052), and other addresses
// without their zone.
func Untranslated(a netip.Addr) netip.Addr {
	if a = CanonicalAddr(a); !nat64.Contains(a) {
		return a
	}
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:]))
}

// CanonicalAddr returns an address in the form for decisions: IPv4-mapped IPv6 as IPv4, and without a zone.
func CanonicalAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// ParseCIDR reads a masked prefix of either family, or an address as its host route. Each range has one valid spelling: host
// bits, zones and IPv4-mapped IPv6 are refused with an error that contains the corrected form.
func ParseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, cidrError(s)
		}
		if a.Zone() != "" {
			return netip.Prefix{}, &syntaxError{s, "has a zone, which is only meaningful on one machine", ""}
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if plain := unmapPrefix(p); plain != p {
		return netip.Prefix{}, &syntaxError{s, "is IPv4 written as IPv6", cidrText(plain.Masked())}
	}
	if p != p.Masked() {
		return netip.Prefix{}, &syntaxError{s, "has host bits set", p.Masked().String()}
	}
	return p, nil
}

// cidrError returns the error for a text that is not a CIDR.
func cidrError(s string) error {
	e := &syntaxError{input: s, flaw: "is not a CIDR or an IP address"}
	trimmed := strings.TrimSpace(s)
	if trimmed == s {
		return e
	}
	if p, err := ParseCIDR(trimmed); err == nil {
		e.flaw, e.use = "has a space or control character", cidrText(p)
	}
	return e
}

// unmapPrefix returns the IPv4 prefix inside ::ffff:0:0/96, or p itself.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// cidrText writes a host route as the bare address.
func cidrText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// Protected is an immutable snapshot of the addresses that no policy can allow: the ranges that the IANA special-purpose
// registries mark not globally reachable, multicast, and the addresses of the host and the boxes, minus the exemptions of the
// operator. A nil *Protected protects every address. Safe for concurrent use.
type Protected struct {
	ranges  Ranges
	merged  []netip.Prefix
	own     Ranges     // the part of ranges that belongs to the host and the boxes
	forward *Protected // for connections to the proxies of rules that forward; nil: the same
}

// NewProtected makes a snapshot. own are the addresses of the host and the pools of the boxes. exempt are the
// exemptions of the operator: each is subtracted from the special-purpose ranges, but from a range in own only if it is
// inside that range. Exempting 10.0.0.0/8 therefore allows neither the host's 10.0.0.5 nor a pool within it; exempting
// 10.0.0.5/32 does allow that address. Host bits are masked. Invalid prefixes are ignored in exempt, and protect
// everything in own. services are further ranges to protect, with the exemptions of special-purpose ranges.
func NewProtected(exempt, own []netip.Prefix, services ...netip.Prefix) *Protected {
	exempt = validPrefixes(exempt)
	p := &Protected{}
	for _, s := range specialPurpose {
		rule := s.prefix.String() + " (" + s.what + ")"
		for _, left := range subtractAll(s.prefix, exempt) {
			p.ranges.AddDenied(left, rule)
		}
	}
	for _, s := range services {
		for _, left := range subtractAll(s.Masked(), exempt) {
			p.ranges.AddDenied(left, s.String()+" (services)")
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
			p.own.AddDenied(left, rule)
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

// IsOwn reports whether a is an address of the host or of the boxes. If these are unknown, every address is, as for a nil *Protected.
func (p *Protected) IsOwn(a netip.Addr) bool {
	if p == nil || !a.IsValid() {
		return true
	}
	_, own := p.own.Lookup(CanonicalAddr(a))
	return own
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
		p.own.AddDenied(all, "")
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

// Split finds the addresses of denied prefixes that no longer allowed prefix contains. The zero value is empty.
type Split struct {
	denied  Ranges
	allowed bart.Lite // IPv4 prefixes with their NAT64 forms
}

// Deny adds a denied prefix. The first of two rules for the same prefix is kept.
func (s *Split) Deny(p netip.Prefix, rule string) { s.denied.AddDenied(p, rule) }

// Allow adds an allowed prefix. It does not win over a denied prefix of the same length.
func (s *Split) Allow(p netip.Prefix) {
	s.allowed.Insert(p)
	if p.Addr().Is4() {
		s.allowed.Insert(translated(p))
	}
}

// Ranges returns the denied addresses, each with the rule of the longest denied prefix that contains it, and false if that takes more
// than a number of steps. An allowed prefix takes at most two steps for each of its bits, also for those of its NAT64 form, and a denied
// one takes two: an IPv6 prefix of a policy is split at most once, however many denied prefixes contain it.
func (s *Split) Ranges(steps int) (denied *Ranges, ok bool) {
	// An IPv6 prefix allows NAT64 addresses, which are IPv4 hosts, only if it is within the NAT64 prefix.
	if rule, found := s.denied.CoveredBy(nat64); found && !s.allowed.Get(nat64) && s.allowed.LookupPrefix(nat64) {
		s.denied.Insert(nat64, rule)
	}
	w := splitter{from: s, into: &Ranges{}, steps: steps}
	for p, rule := range s.denied.table.All() {
		if s.isOutermost(p) && !w.add(p, rule) {
			return nil, false
		}
	}
	return w.into, true
}

// isOutermost reports whether the longest other prefix that contains a denied one is allowed, or does not exist.
func (s *Split) isOutermost(p netip.Prefix) bool {
	around := -1
	for q := range s.denied.table.Supernets(p) {
		if q != p {
			around = max(around, q.Bits())
		}
	}
	for q := range s.allowed.Supernets(p) {
		if q != p && q.Bits() > around {
			return true
		}
	}
	return around < 0
}

// splitter adds the parts of denied prefixes outside of allowed ones.
type splitter struct {
	from  *Split
	into  *Ranges
	steps int // left
}

// add adds p, which is denied by a rule of the same length or shorter, without longer allowed prefixes.
func (s *splitter) add(p netip.Prefix, rule string) bool {
	if s.steps--; s.steps < 0 {
		return false
	}
	own, denied := s.from.denied.table.Get(p)
	switch {
	case denied:
		rule = own
	case s.from.allowed.Get(p):
		return true // denied prefixes within it are outermost ones
	}
	if s.from.allowsBelow(p) {
		low, high := halves(p)
		return s.add(low, rule) && s.add(high, rule)
	}
	s.into.Insert(p, rule)
	for q, longer := range s.from.denied.table.Subnets(p) {
		s.into.Insert(q, longer)
	}
	return true
}

// allowsBelow reports whether an allowed prefix is within p and longer.
func (s *Split) allowsBelow(p netip.Prefix) bool {
	for q := range s.allowed.Subnets(p) {
		if q != p {
			return true
		}
	}
	return false
}
