package name

import (
	"slices"
	"strconv"
	"strings"
)

// Pattern is a host pattern of a policy or header rule: a name, "*.name" (every depth below name, not name itself) or
// "*" (any name), each with an optional port. Only [ParsePattern] makes one.
type Pattern struct {
	name Name   // zero for "*"
	wild bool   // "*.name" or "*"
	port uint16 // 0: not given
	ok   bool   // made by ParsePattern; the zero Pattern matches no host
}

// The ports of HTTPS and HTTP.
const (
	HTTPSPort = 443
	HTTPPort  = 80
)

// ParsePattern reads "name", "*.name" or "*", each optionally followed by ":port", or "service:{name}" for the host name of a service
// ([ParseService]). The error contains the corrected form if it
// is obvious.
func ParsePattern(s string) (Pattern, error) {
	p, flaw := parsePattern(s)
	if flaw != "" {
		return Pattern{}, patternError(s, flaw)
	}
	return p, nil
}

func parsePattern(s string) (p Pattern, flaw string) {
	if strings.Contains(s, "://") || isAddress(s) {
		return Pattern{}, shapeFlaw(s)
	}
	host, port, found := strings.Cut(s, ":")
	if label, isService := strings.CutPrefix(s, servicePrefix); isService && label != "" && 'a' <= label[0] && label[0] <= 'z' {
		p.ok = true
		p.name, flaw = parseService(label)
		return p, flaw
	}
	if found {
		if p.port, flaw = parsePort(port); flaw != "" {
			return Pattern{}, flaw
		}
	}
	p.ok = true
	if host == "*" {
		p.wild = true
		return p, ""
	}
	if host, p.wild = strings.CutPrefix(host, "*."); p.wild && host == "" {
		return Pattern{}, "has an empty label"
	}
	p.name, flaw = parseName(host)
	if flaw != "" {
		return Pattern{}, flaw
	}
	return p, ""
}

// parsePort reads a decimal port of 1 to 65535 without sign or leading zero, so that each port has one spelling.
func parsePort(s string) (port uint16, flaw string) {
	v, err := strconv.ParseUint(s, 10, 16)
	if err != nil || v == 0 || s[0] == '0' || s[0] == '+' {
		return 0, "has a port that is not a number from 1 to 65535"
	}
	return uint16(v), ""
}

// IsZero reports whether the pattern is the zero Pattern, which covers no host.
func (p Pattern) IsZero() bool { return !p.ok }

// ParsePort reads a port in the form of patterns.
func ParsePort(s string) (uint16, error) {
	port, flaw := parsePort(s)
	if flaw != "" {
		return 0, &syntaxError{input: s, flaw: flaw}
	}
	return port, nil
}

// Match reports whether the pattern covers the name on the port. With port 0 (unknown, as in DNS) it reports whether the
// pattern covers the name on any port. The zero Name is never covered.
func (p Pattern) Match(n Name, port uint16) bool {
	if !p.ok || n.IsZero() || p.port != 0 && port != 0 && p.port != port {
		return false
	}
	return p.coversName(n)
}

func (p Pattern) coversName(n Name) bool {
	if !p.wild {
		return p.name == n
	}
	return p.name.IsZero() || isBelow(n, p.name)
}

// isBelow reports whether n is at any depth below parent, by whole labels.
func isBelow(n, parent Name) bool {
	cut := len(n.s) - len(parent.s)
	return cut > 1 && n.s[cut-1] == '.' && n.s[cut:] == parent.s
}

// Covers reports whether p covers every name and port that q covers; false if either is zero.
func (p Pattern) Covers(q Pattern) bool { return p.ok && q.ok && p.covers(q) }

// covers reports whether p covers every name and port that q covers. A pattern without a port covers every port.
func (p Pattern) covers(q Pattern) bool {
	if p.port != 0 && p.port != q.port {
		return false
	}
	if !q.wild {
		return p.coversName(q.name)
	}
	return p.wild && (p.name.IsZero() || p.name == q.name || isBelow(q.name, p.name))
}

// String returns the canonical form, the inverse of [ParsePattern]; "" for the zero Pattern.
func (p Pattern) String() string {
	if !p.ok {
		return ""
	}
	s := p.name.s
	switch {
	case p.wild && p.name.IsZero():
		s = "*"
	case p.wild:
		s = "*." + s
	}
	if p.port != 0 {
		s += ":" + strconv.Itoa(int(p.port))
	}
	return s
}

// Name returns the name of the pattern, without "*."; zero for "*".
func (p Pattern) Name() Name { return p.name }

// Port returns the port, or 0 for every port.
func (p Pattern) Port() uint16 { return p.port }

// IsWildcard reports whether the pattern is "*.name" or "*".
func (p Pattern) IsWildcard() bool { return p.wild }

// WithPort returns p with another port; 0 is every port.
func (p Pattern) WithPort(port uint16) Pattern {
	p.port = port
	return p
}

// WithDefaultPort returns p with this port, unless p already has a port.
func (p Pattern) WithDefaultPort(port uint16) Pattern {
	if p.port == 0 {
		p.port = port
	}
	return p
}

// PortSet is a set of ports.
type PortSet struct {
	All   bool     // every port; Ports is empty then
	Ports []uint16 // sorted, no duplicates
}

// Contains reports whether a port is in the set.
func (s PortSet) Contains(port uint16) bool {
	if s.All {
		return true
	}
	_, found := slices.BinarySearch(s.Ports, port)
	return found
}

// Add adds a port; 0 is every port.
func (s *PortSet) Add(port uint16) {
	switch i, found := slices.BinarySearch(s.Ports, port); {
	case s.All || found:
	case port == 0:
		s.All, s.Ports = true, nil
	default:
		s.Ports = slices.Insert(s.Ports, i, port)
	}
}

func (s PortSet) Clone() PortSet { return PortSet{s.All, slices.Clone(s.Ports)} }

// With returns the union of two sets.
func (s PortSet) With(other PortSet) PortSet {
	out := s.Clone()
	if other.All {
		out.Add(0)
	}
	for _, port := range other.Ports {
		out.Add(port)
	}
	return out
}

// Covers reports whether every port of inner is in the set.
func (s PortSet) Covers(inner PortSet) bool {
	if s.All {
		return true
	}
	return !inner.All && !slices.ContainsFunc(inner.Ports, func(p uint16) bool { return !s.Contains(p) })
}
