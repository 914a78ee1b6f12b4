package git

import (
	"regexp"
	"strings"

	"boxgate/api/problem"
)

var (
	// helper matches git's syntax for a remote helper, a program to run: ext::sh -c …
	helper = regexp.MustCompile(`^[A-Za-z0-9+.-]*::`)
	// onGitHub matches a GitHub repository without an address: owner/name.
	onGitHub = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	// hostAndPath matches an address without a scheme: github.com/acme/app.
	hostAndPath = regexp.MustCompile(`^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+/[^:]+$`)
)

// checkText rejects text that a program would parse as an option, or that no program accepts.
func checkText(p *problem.List, at, text string, required bool) {
	switch {
	case text == "" && required:
		p.Add(at, "is missing")
	case strings.HasPrefix(text, "-"):
		p.Add(at, "must not begin with -")
	case len(text) > 4096, strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		p.Add(at, "must be at most 4096 bytes without control characters")
	}
}

// remote returns the address of a repository: as given, or on GitHub for owner/name.
func remote(p *problem.List, at, repo string) string {
	checkText(p, at, repo, true)
	if helper.MatchString(repo) {
		p.Add(at, "names a program that git would run; give an https:// address, or owner/name for GitHub")
	}
	switch {
	case onGitHub.MatchString(repo):
		return "https://github.com/" + repo
	case hostAndPath.MatchString(repo):
		return "https://" + repo
	}
	if hasCredential(repo) {
		p.Add(at, "has a credential, which git would keep in the box; give it as github_token, or as a header rule of the host")
	}
	return repo
}

// hasCredential reports whether git would find a user before the host of an HTTP address, even if net/url does not.
func hasCredential(repo string) bool {
	scheme, rest, ok := strings.Cut(repo, "://")
	if scheme = strings.ToLower(scheme); !ok || scheme != "https" && scheme != "http" {
		return false
	}
	host, _, _ := strings.Cut(rest, "/")
	return strings.Contains(host, "@")
}

// apiPath returns the path of a repository in GitHub's API, and whether it is on GitHub.
func apiPath(origin string) (string, bool) {
	rest, ok := strings.CutPrefix(origin, "https://github.com/")
	if !ok {
		rest, ok = strings.CutPrefix(origin, "git@github.com:")
	}
	if !ok {
		rest, ok = strings.CutPrefix(origin, "ssh://git@github.com/")
	}
	rest = strings.TrimSuffix(strings.TrimSuffix(rest, "/"), ".git")
	return "/repos/" + rest, ok && onGitHub.MatchString(rest)
}
