package urls

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/policy/name"
)

// oidcBody lists the accounts that open a URL.
type oidcBody struct {
	Emails  []string `json:"emails,omitempty" doc:"addresses that the provider has verified"`
	Domains []string `json:"domains,omitempty" doc:"domains of such addresses"`
	Groups  []string `json:"groups,omitempty" doc:"names of groups at the provider"`
}

// mostAccounts bounds each of the lists.
const mostAccounts = 256

// accounts returns the accounts in the body, or nil.
func (b *oidcBody) accounts() (*api.URLAccounts, error) {
	if b == nil {
		return nil, nil
	}
	if len(b.Emails)+len(b.Domains)+len(b.Groups) == 0 {
		return nil, problem.Invalid("/oidc", "must list emails, domains or groups; otherwise no account could sign in")
	}
	for key, list := range map[string][]string{"emails": b.Emails, "domains": b.Domains, "groups": b.Groups} {
		if len(list) > mostAccounts {
			return nil, problem.Invalid("/oidc/"+key, "must be %d at most", mostAccounts)
		}
	}
	out := &api.URLAccounts{Groups: b.Groups}
	for i, e := range b.Emails {
		name, domain, ok := strings.Cut(e, "@")
		if !ok || name == "" || domain == "" || strings.ContainsAny(e, " \t\r\n*") || strings.Contains(domain, "@") || strings.ContainsFunc(domain, beyondASCII) {
			return nil, problem.Invalid(fmt.Sprintf("/oidc/emails/%d", i), "must be an address such as ann@example.org")
		}
		out.Emails = append(out.Emails, strings.Map(lower, e))
	}
	for i, d := range b.Domains {
		host, err := name.Parse(d)
		if err != nil {
			return nil, problem.Invalid(fmt.Sprintf("/oidc/domains/%d", i), "must be a domain such as example.org")
		}
		out.Domains = append(out.Domains, host.String())
	}
	for i, g := range b.Groups {
		if g == "" || len(g) > 256 {
			return nil, problem.Invalid(fmt.Sprintf("/oidc/groups/%d", i), "must have 1 to 256 bytes")
		}
	}
	return out, nil
}

func beyondASCII(r rune) bool { return r >= utf8.RuneSelf }

// lower maps only ASCII letters to lower case, as in the comparison of addresses.
func lower(r rune) rune {
	if 'A' <= r && r <= 'Z' {
		return r + 'a' - 'A'
	}
	return r
}

func viewAccounts(a *api.URLAccounts) *oidcBody {
	if a == nil {
		return nil
	}
	return &oidcBody{Emails: a.Emails, Domains: a.Domains, Groups: a.Groups}
}
