package spec

import (
	"encoding/base64"
	"regexp"
	"slices"

	"boxgate/api/problem"
	"boxgate/policy"
)

// githubToken matches tokens of GitHub, including likely future forms.
var githubToken = regexp.MustCompile(`^[A-Za-z0-9_.=+/~-]{1,1000}$`)

// GitHub returns the header rules that take the place of a token of GitHub: git and the API get it on their way, and the
// box never has it. A bad token is a problem at the pointer.
func GitHub(p *problem.List, at, token string) []policy.HeaderRule {
	if !githubToken.MatchString(token) {
		p.Add(at, "is not a token of GitHub")
		return nil
	}
	basic := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + token))
	rules, err := policy.ParseHeaders(map[string]map[string]string{
		"github.com":     {"Authorization": "Basic " + basic}, // git over HTTPS knows no other form
		"api.github.com": {"Authorization": "Bearer " + token},
	})
	if err != nil {
		p.Add(at, "is not a token of GitHub")
	}
	return rules
}

// WithGitHub adds the rules of [GitHub] to others, which go first: a host that has a rule keeps it.
func WithGitHub(p *problem.List, at, token string, rules []policy.HeaderRule) []policy.HeaderRule {
	if token == "" {
		return rules
	}
	for _, rule := range GitHub(p, at, token) {
		if !slices.ContainsFunc(rules, func(r policy.HeaderRule) bool { return r.Pattern == rule.Pattern }) {
			rules = append(rules, rule)
		}
	}
	return rules
}
