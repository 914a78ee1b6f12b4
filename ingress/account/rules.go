package account

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Rules list the accounts that a public URL admits. The zero Rules admit no one.
type Rules struct {
	Emails  []string // in lower case
	Domains []string // of e-mail addresses, in lower case
	Groups  []string
}

// Identity is the visitor's identity according to the provider. The zero Identity is anonymous.
type Identity struct {
	Email    string
	Verified bool // the provider has verified that the address is the visitor's
	Groups   []string
}

// Allow reports whether the rules admit an identity. Unverified addresses do not count.
func (r *Rules) Allow(id Identity) bool {
	if r == nil {
		return false
	}
	if id.Verified {
		email := fold(id.Email)
		name, domain, ok := strings.Cut(email, "@")
		if ok && isASCII(domain) && name != "" && domain != "" && !strings.Contains(domain, "@") && (slices.Contains(r.Emails, email) || slices.Contains(r.Domains, domain)) {
			return true
		}
	}
	return id.Verified && slices.ContainsFunc(id.Groups, func(g string) bool { return g != "" && slices.Contains(r.Groups, g) })
}

// fold returns an address in lower case, in ASCII only: some other letters (K, the Kelvin sign) have ASCII letters as their
// lower case, which would make two addresses equal.
func fold(address string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, address)
}

// isASCII reports whether a domain is in its DNS form.
func isASCII(domain string) bool {
	return !strings.ContainsFunc(domain, func(r rune) bool { return r >= utf8.RuneSelf })
}
