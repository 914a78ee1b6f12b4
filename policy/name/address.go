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
