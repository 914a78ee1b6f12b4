package match

import (
	"regexp"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// RepoRule allows one git repository of a host over HTTPS. On a host with such rules, all other requests are denied, except
// those decided by request rules of the policy, which come first. The host itself must be allowed by the lists of the policy.
type RepoRule struct {
	Host   string `json:"host,omitempty" doc:"absent: github.com"`
	Name   string `json:"name" doc:"owner/repository, or a longer path; without .git"`
	Access string `json:"access" enum:"read push"`
}

// The values of Access.
const (
	AccessRead = "read"
	AccessPush = "push"
)

// The hosts that ignore the case of repository names.
const (
	gitHub = "github.com"
	gitLab = "gitlab.com"
)

// repoName is a path of a repository whose segments need no escaping.
var repoName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*$`)

func (r RepoRule) Describe() string { return r.Access + " " + r.Host + "/" + r.Name }

// foldsRepos reports whether a host ignores the case of repository names.
func foldsRepos(host string) bool { return host == gitHub || host == gitLab }

const (
	MaxRepos  = 64
	gitHubAPI = "api.github.com"
)

// gitHubWrites are the parts of a repository in GitHub's API that may be changed with access push. They do not include
// permissions: hooks, keys, collaborators, secrets, protected branches, and the repository itself.
const gitHubWrites = "pulls|issues|git|contents|merges|merge-upstream|comments|commits|statuses|labels|milestones|releases"

// CompileRepos checks the rules for repositories and compiles them to request rules.
func CompileRepos(at string, repos []RepoRule, ps *document.Problems) (out []CompiledRule) {
	if ps.TooMany(at, len(repos), MaxRepos) {
		return nil
	}
	var hosts []string
	for i, r := range repos {
		at := document.Element(at, i)
		if r.Host == "" {
			r.Host = gitHub
		}
		r.Host = canonicalHost(r.Host)
		if !r.check(at, ps) {
			continue
		}
		for _, rule := range r.rules() {
			compiled := compileRule(at, rule, ps)
			compiled.Rule = r.Describe()
			out = append(out, compiled)
		}
		if hosts = append(hosts, r.Host); r.Host == gitHub {
			hosts = append(hosts, gitHubAPI)
		}
	}
	slices.Sort(hosts)
	for _, host := range slices.Compact(hosts) {
		rest := compileRule(at, RequestRule{Hosts: []string{host}, Action: ActionDeny}, ps)
		rest.Rule = "repos of " + host
		out = append(out, rest)
	}
	return out
}

// canonicalHost returns the canonical form of a host without port 443, for comparison with known hosts. It returns an invalid host
// unchanged.
func canonicalHost(host string) string {
	p, err := name.ParsePattern(host)
	if err != nil {
		return host
	}
	if p.Port() == name.HTTPSPort {
		p = p.WithPort(0)
	}
	return p.String()
}

// otherNames are other hosts of GitHub and GitLab, with the main host. A rule for one of them would not restrict the main host.
var otherNames = map[string]string{
	"www.github.com": gitHub, gitHubAPI: gitHub, "gist.github.com": gitHub, "codeload.github.com": gitHub, "raw.githubusercontent.com": gitHub, "ssh.github.com": gitHub, "www.gitlab.com": gitLab,
}

// check reports whether a rule is valid.
func (r RepoRule) check(at string, ps *document.Problems) bool {
	before := len(ps.List)
	p, err := name.ParsePattern(r.Host)
	switch host := p.Name().String(); {
	case err != nil:
		ps.Add(at+"/host", "%s", err)
	case p.IsWildcard():
		ps.Add(at+"/host", "%s is a wildcard; name the host", name.Quote(r.Host))
	case otherNames[host] != "":
		ps.Add(at+"/host", "%s is not the host of repositories; use %q", name.Quote(r.Host), otherNames[host])
	case p.Port() != 0 && (host == gitHub || host == gitLab):
		ps.Add(at+"/host", "%s has a port on which there are no repositories; use %q", name.Quote(r.Host), host)
	}
	r.CheckPath(at, ps)
	return len(ps.List) == before
}

// CheckPath checks the name of the repository, and the access.
func (r RepoRule) CheckPath(at string, ps *document.Problems) {
	switch segments := strings.Count(r.Name, "/") + 1; {
	case len(r.Name) > 256 || !repoName.MatchString(r.Name):
		ps.Add(at+"/name", "%s is no path of a repository, such as owner/name", name.Quote(r.Name))
	case strings.HasSuffix(strings.ToLower(r.Name), ".git"):
		ps.Add(at+"/name", "ends in .git; use %q, which stands for both forms", r.Name[:len(r.Name)-len(".git")])
	case r.Host == gitHub && segments != 2, r.Host == gitLab && segments < 2:
		ps.Add(at+"/name", "%s is not owner/name", name.Quote(r.Name))
	}
	switch r.Access {
	case AccessRead, AccessPush:
	default:
		ps.Add(at+"/access", `%s is no access; use "read" or "push"`, name.Quote(r.Access))
	}
}

// rules returns the request rules that allow the repository.
func (r RepoRule) rules() []RequestRule {
	services := []string{"git-upload-pack"}
	if r.Access == AccessPush {
		services = append(services, "git-receive-pack")
	}
	base := r.path() + `(\.git)?/`
	var out []RequestRule
	for _, service := range services { // the smart protocol, gitprotocol-http(5)
		out = append(out,
			r.allow(r.Host, base+"info/refs$", []string{"GET"}, Pair{*Exact("service"), Exact(service)}),
			r.allow(r.Host, base+service+"$", []string{"POST"}))
	}
	if r.Access == AccessPush { // only the body of a batch distinguishes reading from writing
		out = append(out, r.allow(r.Host, base+"info/lfs/(objects/batch|locks(/verify|/[0-9A-Za-z_-]+/unlock)?|verify)$", []string{"GET", "POST"}))
	}
	if r.Host != gitHub {
		return out
	}
	api := `^/repos/(?i:` + regexp.QuoteMeta(r.Name) + ")"
	out = append(out, r.allow(gitHubAPI, api+"(/|$)", []string{"GET", "HEAD"}))
	if r.Access == AccessPush {
		out = append(out, r.allow(gitHubAPI, api+"/("+gitHubWrites+")(/|$)", []string{"POST", "PUT", "PATCH", "DELETE"}))
	}
	return out
}

// path returns the beginning of the regular expression for the paths of the repository. GitHub and GitLab ignore the case of names.
func (r RepoRule) path() string {
	name := regexp.QuoteMeta(r.Name)
	if foldsRepos(r.Host) {
		name = "(?i:" + name + ")"
	}
	return "^/" + name
}

func (r RepoRule) allow(host, path string, methods []string, query ...Pair) RequestRule {
	return RequestRule{Hosts: []string{host}, Action: ActionAllow,
		Match: &Match{Methods: methods, Path: Regex(path), Query: Pairs{query}}}
}

func ReadRepos(at string, v document.Value, ps *document.Problems) []RepoRule {
	if v.Kind != document.List {
		ps.Add(at, "is %s; want a list of repositories", v.Kind)
		return nil
	}
	repos := make([]RepoRule, len(v.Items))
	for i, item := range v.Items {
		r := &repos[i]
		item.Fields(document.Element(at, i), "an object with name and access", ps, map[string]func(string, document.Value){
			"host":   func(at string, v document.Value) { r.Host = v.AsString(at, ps) },
			"name":   func(at string, v document.Value) { r.Name = v.AsString(at, ps) },
			"access": func(at string, v document.Value) { r.Access = v.AsString(at, ps) },
		})
	}
	return repos
}

// SameRepo reports whether a path belongs to a repository, as in [RepoRule.path].
func SameRepo(host name.Name, rule, path string) bool {
	if !repoName.MatchString(path) {
		return false
	}
	same := func(a, b string) bool { return a == b }
	if foldsRepos(host.String()) {
		same = strings.EqualFold
	}
	return same(path, rule) || strings.HasSuffix(path, ".git") && same(strings.TrimSuffix(path, ".git"), rule)
}
