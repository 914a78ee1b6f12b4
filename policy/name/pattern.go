package name

import (
	"strconv"
	"strings"
)

// Pattern is a host pattern of a policy or header rule: a name, "*.name" (every depth below name, not name itself) or
// "*" (any name), each with an optional port. Only [ParsePattern] makes one.
type Pattern struct {
	name Name   // zero for "*"
	wild bool   // "*.name" or "*"
	port uint16 // 0: not given
	ok   bool   // made by ParsePattern; a zero Pattern matches nothing
}

// The ports of HTTPS and HTTP.
const (
	HTTPSPort = 443
	HTTPPort  = 80
)

// ParsePattern reads "name", "*.name" or "*", each optionally followed by ":port". The error says what is wrong and,
// where it is obvious, what was probably meant.
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

// parsePort reads a decimal port of 1 to 65535 without sign or leading zero: one spelling each, so that two patterns
// are the same if they look the same.
func parsePort(s string) (port uint16, flaw string) {
	v, err := strconv.ParseUint(s, 10, 16)
	if err != nil || v == 0 || s[0] == '0' || s[0] == '+' {
		return 0, "has a port that is not a number from 1 to 65535"
	}
	return uint16(v), ""
}

// IsZero reports whether the pattern is the zero Pattern, which covers nothing.
func (p Pattern) IsZero() bool { return !p.ok }

// ParsePort reads a port as patterns have it.
func ParsePort(s string) (uint16, error) {
	port, flaw := parsePort(s)
	if flaw != "" {
		return 0, &syntaxError{input: s, flaw: flaw}
	}
	return port, nil
}

// Match reports whether the pattern covers the name on the port. Port 0 means that the port is not known yet (DNS):
// the pattern then covers the name if it does so on any port. The zero Name is never covered.
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

// Covers reports whether every name and port that q covers is covered by p as well; false if either is zero.
func (p Pattern) Covers(q Pattern) bool { return p.ok && q.ok && p.covers(q) }

// covers reports whether every name and port that q covers is covered by p as well. Without a port a pattern covers
// all of them.
func (p Pattern) covers(q Pattern) bool {
	if p.port != 0 && p.port != q.port {
		return false
	}
	if !q.wild {
		return p.coversName(q.name)
	}
	return p.wild && (p.name.IsZero() || p.name == q.name || isBelow(q.name, p.name))
}

// String returns the canonical form, which [ParsePattern] reads back to the same pattern; "" for the zero Pattern.
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

// Port returns the port, or 0 if the pattern gives none.
func (p Pattern) Port() uint16 { return p.port }

// IsWildcard reports whether the pattern is "*.name" or "*".
func (p Pattern) IsWildcard() bool { return p.wild }

// WithPort returns p with the port in the place of its own; 0 is every port.
func (p Pattern) WithPort(port uint16) Pattern {
	p.port = port
	return p
}

// WithDefaultPort returns p with the port filled in where it gives none.
func (p Pattern) WithDefaultPort(port uint16) Pattern {
	if p.port == 0 {
		p.port = port
	}
	return p
}
