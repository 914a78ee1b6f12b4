package policy

import (
	"net/netip"
	"slices"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// Precedence selects the entry that decides where an allowed and a denied entry of the same kind cover a destination. With the
// empty value denied entries win.
type Precedence string

// PrecedenceSpecific is the precedence of the more specific entry: of the longer name, where a name is longer than a wildcard that covers
// it, or of the longer prefix. Among equals denied entries win. Ports do not count. Names and addresses are not compared: a destination
// whose name or address is denied in this way is denied.
const PrecedenceSpecific Precedence = "specific"

// maxSplit is the largest number of steps to split denied CIDRs at their exceptions. At most half as many ranges result.
const maxSplit = 1 << 17

// deniedRanges returns the denied addresses. The number of steps is bounded, twice as high for a policy with temporary entries.
func (p *parsedSpec) deniedRanges(s Spec, most int, ps *document.Problems) (denied *name.Ranges) {
	denied = &name.Ranges{}
	if s.Precedence != PrecedenceSpecific {
		for _, e := range p.deniedCIDRs {
			denied.AddDenied(e.prefix, e.rule)
		}
		return denied
	}
	var except name.Exceptions
	for _, e := range p.allowedCIDRs {
		except.Add(e.prefix)
	}
	steps := maxSplit
	if most > MaxEntries {
		steps *= 2
	}
	longestFirst := slices.SortedStableFunc(slices.Values(p.deniedCIDRs), func(a, b cidr) int { return hostBits(a.prefix) - hostBits(b.prefix) })
	for _, e := range longestFirst {
		if !denied.AddDeniedExcept(e.prefix, e.rule, &except, &steps) {
			ps.Add("/denied_cidrs", `is split into more than %d ranges by its exceptions in allowed_cidrs; use fewer or wider exceptions, or leave out denied ranges: addresses in no list are denied anyway`, maxSplit/2)
			break
		}
	}
	return denied
}

// hostBits compares prefixes of both families: the NAT64 form of an IPv4 prefix has the same number.
func hostBits(p netip.Prefix) int { return p.Addr().BitLen() - p.Bits() }
