package policy

import (
	"strings"

	"golang.org/x/net/publicsuffix"
)

// IsLoopback reports whether the name is localhost or below it: every resolver resolves it to the machine itself (RFC
// 6761, 6.3).
func (n Name) IsLoopback() bool { return n.s == "localhost" || strings.HasSuffix(n.s, ".localhost") }

// IsWithin reports whether n is the domain or at any depth below it. Nothing is within the zero Name.
func (n Name) IsWithin(domain Name) bool {
	return !domain.IsZero() && (n == domain || isBelow(n, domain))
}

// IsPublic reports whether the name can be that of a host on the internet: below a delegated top-level domain. Single
// labels, special-use names (RFC 6761: localhost, local, test, invalid, home.arpa and the like), internal and any other
// top-level domain that a site makes up are not. A domain delegated after the list of golang.org/x/net/publicsuffix was
// made counts as made up.
func (n Name) IsPublic() bool {
	dot := strings.LastIndexByte(n.s, '.')
	if dot < 0 {
		return false
	}
	switch n.s[dot+1:] {
	case "arpa", "onion": // infrastructure (RFC 3172), and no DNS name (RFC 7686)
		return false
	}
	suffix, icann := publicsuffix.PublicSuffix(n.s)
	return icann || strings.Contains(suffix, ".") // a private entry is below a delegated domain; one label is the default rule
}
