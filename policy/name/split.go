package name

import (
	"net/netip"

	"github.com/gaissmai/bart"
)

// Exceptions are allowed prefixes that win over shorter denied ones.
type Exceptions struct {
	table bart.Lite // IPv4 prefixes with their NAT64 forms
}

// Add adds a prefix.
func (e *Exceptions) Add(p netip.Prefix) {
	e.table.Insert(p)
	if p.Addr().Is4() {
		e.table.Insert(translated(p))
	}
}

// AddDeniedExcept adds p as [Ranges.AddDenied] does, but without the addresses of longer prefixes in e. A prefix of the same length does
// not win over p. If p is added after all longer denied prefixes, Lookup returns the rule of the longest one that contains an address.
// Each piece of p that is looked at takes one from steps. If these are used up, AddDeniedExcept returns false, and the set is unusable.
func (r *Ranges) AddDeniedExcept(p netip.Prefix, rule string, e *Exceptions, steps *int) bool {
	s := splitter{into: r, rule: rule, except: e, length: p.Bits(), steps: steps}
	if !s.add(p) || p.Addr().Is6() {
		return *steps > 0
	}
	s.length += nat64.Bits()
	s.add(translated(p))
	return *steps > 0
}

// splitter adds the pieces of a denied prefix that no exception covers.
type splitter struct {
	into   *Ranges
	rule   string
	except *Exceptions
	length int // of the denied prefix
	steps  *int
}

func (s *splitter) add(p netip.Prefix) bool {
	if *s.steps--; *s.steps <= 0 {
		return false
	}
	longest, covered := s.except.table.LookupPrefixLPM(p)
	covered = covered && longest.Bits() > s.length
	if covered && longest.Bits() < nat64.Bits() && p.Overlaps(nat64) {
		// An IPv6 prefix allows NAT64 addresses, which are IPv4 hosts, only if it is within the NAT64 prefix.
		if p.Bits() < nat64.Bits() {
			return s.addHalves(p)
		}
		covered = false
	}
	switch {
	case covered:
		return true
	case s.hasExceptionBelow(p):
		return s.addHalves(p)
	}
	s.into.Insert(p, s.rule)
	return true
}

func (s *splitter) addHalves(p netip.Prefix) bool {
	low, high := halves(p)
	return s.add(low) && s.add(high)
}

// hasExceptionBelow reports whether an exception is within p and longer than it.
func (s *splitter) hasExceptionBelow(p netip.Prefix) bool {
	for q := range s.except.table.Subnets(p) {
		if q != p {
			return true
		}
	}
	return false
}
