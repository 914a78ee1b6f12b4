package policy

import (
	"net/netip"

	"github.com/gaissmai/bart"
)

// nat64 is the well-known prefix (RFC 6052) by which IPv4 is reached from IPv6: an address in it is the IPv4 in its
// last 32 bits.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// ranges is a set of prefixes of both families, each with the rule it came from. An IPv4 prefix includes its NAT64
// form; an IPv6 prefix wider than the NAT64 one does not include it when the set allows. So decisions and the kernel
// use the same set, and neither needs to translate.
type ranges struct {
	table bart.Table[string]
}

// lookup returns the rule of the most specific prefix that holds a, which must be canonical (see canonicalAddr).
func (r *ranges) lookup(a netip.Addr) (rule string, ok bool) { return r.table.Lookup(a) }

// insert keeps the first of two rules for the same prefix.
func (r *ranges) insert(p netip.Prefix, rule string) {
	if _, taken := r.table.Get(p); !taken {
		r.table.Insert(p, rule)
	}
}

// addDenied adds p with everything that leads there: the NAT64 addresses of an IPv4 prefix, and those inside a wide
// IPv6 prefix.
func (r *ranges) addDenied(p netip.Prefix, rule string) {
	r.insert(p, rule)
	if p.Addr().Is4() {
		r.insert(translated(p), rule)
	}
}

// addAllowed adds p and nothing that was not written: an IPv6 prefix opens NAT64 addresses, which are IPv4 hosts, only
// if it lies inside their range.
func (r *ranges) addAllowed(p netip.Prefix, rule string) {
	if p.Addr().Is6() && p.Bits() < nat64.Bits() {
		for _, q := range subtract(p, nat64) {
			r.insert(q, rule)
		}
		return
	}
	r.addDenied(p, rule)
}

// merged returns the addresses of the set as the fewest prefixes that do not overlap, in order.
func (r *ranges) merged() []netip.Prefix {
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
	if a = canonicalAddr(a); !nat64.Contains(a) {
		return a
	}
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:]))
}

// canonicalAddr returns the form in which an address is judged: IPv4-mapped IPv6 as IPv4, and without a zone.
func canonicalAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
