package name

import (
	"net/netip"
	"strings"

	"github.com/gaissmai/bart"
)

// nat64 is the well-known prefix (RFC 6052) by which IPv4 is reached from IPv6: an address in it is the IPv4 in its
// last 32 bits.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Ranges is a set of prefixes of both families, each with the rule it came from. An IPv4 prefix includes its NAT64
// form; an IPv6 prefix wider than the NAT64 one does not include it when the set allows. So decisions and the kernel
// use the same set, and neither needs to translate.
type Ranges struct {
	table bart.Table[string]
}

// Lookup returns the rule of the most specific prefix that holds a, which must be canonical (see canonicalAddr).
func (r *Ranges) Lookup(a netip.Addr) (rule string, ok bool) { return r.table.Lookup(a) }

// Insert keeps the first of two rules for the same prefix.
func (r *Ranges) Insert(p netip.Prefix, rule string) {
	if _, taken := r.table.Get(p); !taken {
		r.table.Insert(p, rule)
	}
}

// AddDenied adds p with everything that leads there: the NAT64 addresses of an IPv4 prefix, and those inside a wide
// IPv6 prefix.
func (r *Ranges) AddDenied(p netip.Prefix, rule string) {
	r.Insert(p, rule)
	if p.Addr().Is4() {
		r.Insert(translated(p), rule)
	}
}

// AddAllowed adds p and nothing that was not written: an IPv6 prefix opens NAT64 addresses, which are IPv4 hosts, only
// if it lies inside their range.
func (r *Ranges) AddAllowed(p netip.Prefix, rule string) {
	if p.Addr().Is6() && p.Bits() < nat64.Bits() {
		for _, q := range subtract(p, nat64) {
			r.Insert(q, rule)
		}
		return
	}
	r.AddDenied(p, rule)
}

// CoveredBy returns the rule of the most specific prefix that holds every address of p.
func (r *Ranges) CoveredBy(p netip.Prefix) (rule string, ok bool) { return r.table.LookupPrefix(p) }

// Overlaps reports whether some address of p is in the set.
func (r *Ranges) Overlaps(p netip.Prefix) bool { return r.table.OverlapsPrefix(p) }

// Merged returns the addresses of the set as the fewest prefixes that do not overlap, in order.
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

// translated returns the NAT64 form of an IPv4 prefix.
func translated(p netip.Prefix) netip.Prefix {
	b := nat64.Addr().As16()
	v4 := p.Addr().As4()
	copy(b[12:], v4[:])
	return netip.PrefixFrom(netip.AddrFrom16(b), 96+p.Bits())
}

// subtract returns what is left of p without the addresses of q.
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

// subtractAll returns what is left of p without the addresses of any of qs.
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

// Untranslated returns the host that an address leads to: the IPv4 address inside an IPv4-mapped or NAT64 (64:ff9b::/96,
// RFC 6052) one, else the address itself, without a zone.
func Untranslated(a netip.Addr) netip.Addr {
	if a = CanonicalAddr(a); !nat64.Contains(a) {
		return a
	}
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:]))
}

// CanonicalAddr returns the form in which an address is judged: IPv4-mapped IPv6 as IPv4, and without a zone.
func CanonicalAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// ParseCIDR reads a masked prefix of either family, or an address as its host route. One range has one spelling: host
// bits, zones and IPv4-mapped IPv6 are refused, and the error gives the plain form.
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

// cidrError says what s is, if not a CIDR.
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
