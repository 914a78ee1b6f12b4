package name

import (
	"net/netip"

	"github.com/gaissmai/bart"
)

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
