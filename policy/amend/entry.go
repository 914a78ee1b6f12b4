// Package amend changes single entries of a policy, and preserves its decisions about everything else.
package amend

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// Entry is an entry for the lists of a policy: a name or "*.name" with or without a port, an address or a CIDR.
type Entry struct {
	text    string
	pattern name.Pattern // zero for an address
	prefix  netip.Prefix // zero for a name
}

// ParseEntry reads an entry. The error contains the corrected form if it is obvious.
func ParseEntry(s string) (Entry, error) {
	prefix, isAddress := prefixOf(s)
	if !isAddress {
		pattern, err := name.ParsePattern(s)
		return Entry{s, pattern, netip.Prefix{}}, err
	}
	// The parser of policies accepts one spelling of each range.
	_, err := policy.Compile(policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{s}}, policy.Options{})
	if invalid, ok := errors.AsType[*document.InvalidError](err); ok {
		return Entry{}, errors.New(invalid.Problems[0].Message)
	}
	return Entry{s, name.Pattern{}, prefix}, err
}

// listed reads an entry of a policy, which has been checked before.
func listed(s string) (Entry, bool) {
	if prefix, ok := prefixOf(s); ok {
		return Entry{s, name.Pattern{}, prefix}, true
	}
	pattern, err := name.ParsePattern(s)
	return Entry{s, pattern, netip.Prefix{}}, err == nil
}

// prefixOf reads a CIDR, or an address as its host route.
func prefixOf(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	return p, err == nil
}

// String returns the entry as it was given.
func (e Entry) String() string { return e.text }

func (e Entry) isAddress() bool { return e.prefix.IsValid() }

// covers reports whether e covers all destinations of o.
func (e Entry) covers(o Entry) bool {
	if e.isAddress() != o.isAddress() {
		return false
	}
	if e.isAddress() {
		return e.prefix.Bits() <= o.prefix.Bits() && e.prefix.Contains(o.prefix.Addr())
	}
	return e.pattern.Covers(o.pattern)
}

// isSame reports whether both cover the same destinations.
func (e Entry) isSame(o Entry) bool { return e.covers(o) && o.covers(e) }

// coveredBy returns the first entry of a list that covers e, or "".
func (e Entry) coveredBy(list []string) string {
	i := slices.IndexFunc(list, func(s string) bool {
		other, ok := listed(s)
		return ok && other.covers(e)
	})
	if i < 0 {
		return ""
	}
	return list[i]
}

// without returns a list without the entries for which gone reports true; nil if it is empty.
func without(list []string, gone func(Entry) bool) []string {
	var out []string
	for _, s := range list {
		if e, ok := listed(s); !ok || !gone(e) {
			out = append(out, s)
		}
	}
	return out
}

// lists returns the lists of a policy for entries like e.
func (e Entry) lists(s *policy.Spec) (allowed, denied *[]string) {
	if e.isAddress() {
		return &s.AllowedCIDRs, &s.DeniedCIDRs
	}
	return &s.AllowedDomains, &s.DeniedDomains
}

// Change is a policy after a change of one entry.
type Change struct {
	Spec    policy.Spec
	Changed bool
	Said    string // describes the change, or the reason why there is none
}

func unchanged(s policy.Spec, format string, args ...any) Change {
	return Change{s, false, "nothing to do: " + fmt.Sprintf(format, args...)}
}
