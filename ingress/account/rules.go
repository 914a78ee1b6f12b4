package account

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Rules say whom a public URL lets in: accounts that one of the lists names. The zero Rules let nobody in.
type Rules struct {
	Emails  []string // in lower case
	Domains []string // of e-mail addresses, in lower case
	Groups  []string
}

// Identity is who the provider says a visitor is. The zero Identity is nobody.
type Identity struct {
	Email    string
	Verified bool // the provider has verified that the address is the visitor's
	Groups   []string
}

// Allow reports whether the rules let an identity in. An address that is not verified is no reason to.
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

// fold returns an address in lower case. Letters beyond ASCII stay as they are: some of them have those of ASCII as their lower
// case (K, the Kelvin sign), and two addresses would be one.
func fold(address string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, address)
}

// isASCII reports whether a domain is in the form that DNS knows.
func isASCII(domain string) bool {
	return !strings.ContainsFunc(domain, func(r rune) bool { return r >= utf8.RuneSelf })
}
