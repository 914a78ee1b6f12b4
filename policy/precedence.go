package policy

import (
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

// Overruled returns a policy of mode custom with a denied entry, a name or a CIDR, that wins over all allowed ones. It is not part of the
// policy as a document.
func (s Spec) Overruled(denied string) Spec {
	s.overruling = append(slices.Clip(s.overruling), denied)
	return s
}

// addOverruling reads the entries of [Spec.Overruled].
func (p *parsedSpec) addOverruling(list []string, ps *document.Problems) {
	if ps.TooMany("/leases", len(list), MostBeside) {
		return
	}
	for i, s := range list {
		if prefix, err := name.ParseCIDR(s); err == nil {
			p.overrulingCIDRs = append(p.overrulingCIDRs, cidr{prefix, s})
		} else if pattern, ok := ps.Pattern(document.Element("/leases", i), s); ok {
			p.overrulingDomains = append(p.overrulingDomains, domain{pattern, s})
		}
	}
}

// maxSplit is the largest number of steps to split denied CIDRs at their exceptions. About half as many ranges result.
const maxSplit = 1 << 17

// deniedRanges returns the denied addresses. The number of steps is bounded. Compile takes twice as many: MostBeside temporary exceptions
// take up to 324 each, and one for each denied CIDR that a shorter one contains.
func (p *parsedSpec) deniedRanges(s Spec, most int, ps *document.Problems) (denied *name.Ranges) {
	denied = &name.Ranges{}
	if s.Precedence == PrecedenceSpecific {
		denied = p.splitRanges(most, ps)
	} else {
		for _, e := range p.deniedCIDRs {
			denied.AddDenied(e.prefix, e.rule)
		}
	}
	for _, e := range p.overrulingCIDRs {
		denied.AddDenied(e.prefix, e.rule)
	}
	return denied
}

// splitRanges returns the denied addresses without their exceptions.
func (p *parsedSpec) splitRanges(most int, ps *document.Problems) *name.Ranges {
	var split name.Split
	for _, e := range p.deniedCIDRs {
		split.Deny(e.prefix, e.rule)
	}
	for _, e := range p.allowedCIDRs {
		split.Allow(e.prefix)
	}
	steps := maxSplit
	if most > MaxEntries {
		steps *= 2
	}
	denied, ok := split.Ranges(steps)
	if !ok {
		ps.Add("/denied_cidrs", `is split into more than %d ranges by its exceptions in allowed_cidrs; use fewer or wider exceptions, or leave out denied ranges: addresses in no list are denied anyway`, maxSplit/2)
		return &name.Ranges{}
	}
	return denied
}
