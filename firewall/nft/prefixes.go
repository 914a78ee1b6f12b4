package nft

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"boxgate/firewall/network"
)

// span is a range of addresses of one family, both ends included.
type span struct{ first, last netip.Addr }

// spans returns the prefixes of the family as sorted ranges that neither overlap nor touch. The kernel refuses overlapping
// ranges, so they are merged here.
func spans(f network.Family, prefixes []netip.Prefix) []span {
	var in []span
	for _, p := range prefixes {
		if p.IsValid() && network.FamilyOf(p.Addr()) == f {
			in = append(in, span{p.Masked().Addr(), lastOf(p)})
		}
	}
	slices.SortFunc(in, func(a, b span) int { return a.first.Compare(b.first) })
	var out []span
	for _, s := range in {
		if n := len(out); n > 0 {
			end := &out[n-1].last
			if next := end.Next(); !next.IsValid() || s.first.Compare(next) <= 0 {
				if end.Less(s.last) {
					*end = s.last
				}
				continue
			}
		}
		out = append(out, s)
	}
	return out
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// intervals converts ranges to the kernel's format: a start, and as end the first address after the range. A range up to
// the very last address has no end.
func intervals(ranges []span) []nftables.SetElement {
	out := make([]nftables.SetElement, 0, 2*len(ranges))
	for _, s := range ranges {
		out = append(out, nftables.SetElement{Key: s.first.AsSlice()})
		if next := s.last.Next(); next.IsValid() {
			out = append(out, nftables.SetElement{Key: next.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}
