package policy

import "regexp"

// RepoRule opens one git repository of a host over HTTPS. On a host that any of these rules names, only what they open
// passes; request rules of the policy come first. A rule does not allow its host: the lists of the policy do.
type RepoRule struct {
	Host   string `json:"host,omitempty" doc:"absent: github.com"`
	Name   string `json:"name" doc:"owner/repository, or a longer path; without .git"`
	Access string `json:"access" enum:"read push"`
}

// What a rule opens.
const (
	accessRead = "read"
	accessPush = "push"
)

// The hosts whose repositories have names without case.
const (
	gitHub = "github.com"
	gitLab = "gitlab.com"
)

// repoName is a path of a repository whose segments need no escaping.
var repoName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*$`)

func (r RepoRule) describe() string { return r.Access + " " + r.Host + "/" + r.Name }

// foldsRepos reports whether a host ignores the case of repositories' names.
func foldsRepos(host string) bool { return host == gitHub || host == gitLab }
