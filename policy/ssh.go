package policy

import (
	"slices"
	"strings"

	"boxgate/policy/match"
	"boxgate/policy/name"
)

// SSH is a login to an SSH server: one user, whose private key the gateway holds, and what that user may do there.
type SSH struct {
	User     string
	Source   string    // the secret in the gateway's configuration that is the private key
	HostKeys []HostKey // the server must prove that it has one of them
	// Repos and Commands are what the user may do. If both are empty it may do anything that needs no forwarding.
	Repos    []match.RepoRule // git repositories; the host of each is that of the login
	Commands []string         // commands, as a whole
}

// Limited reports whether only some commands are allowed.
func (s *SSH) Limited() bool { return len(s.Repos)+len(s.Commands) > 0 }

// Equal reports whether two logins are the same.
func (s *SSH) Equal(o *SSH) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.User == o.User && s.Source == o.Source && slices.Equal(s.HostKeys, o.HostKeys) &&
		slices.Equal(s.Repos, o.Repos) && slices.Equal(s.Commands, o.Commands)
}

// The services of git over SSH.
const (
	gitUploadPack    = "git-upload-pack"
	gitReceivePack   = "git-receive-pack"
	gitUploadArchive = "git-upload-archive"
)

// GitServices are the programs of git that a server runs for its clients.
func GitServices() []string { return []string{gitUploadPack, gitReceivePack, gitUploadArchive} }

// Repo decides about a service of git on a repository: the path is as a client of a host gives it, with or without a slash
// at its beginning and .git at its end, which mean the same. A rule that allows pushing allows reading, too.
func (s *SSH) Repo(host name.Name, service, path string) Decision {
	if !slices.Contains(GitServices(), service) {
		return Decision{Reason: name.ReasonRequestRule}
	}
	n := strings.TrimPrefix(path, "/")
	refused := Decision{Reason: name.ReasonRequestRule}
	for _, r := range s.Repos {
		if !match.SameRepo(host, r.Name, n) {
			continue
		}
		r.Host = host.String()
		if service != gitReceivePack || r.Access == match.AccessPush {
			return Decision{Verdict: Allow, Reason: name.ReasonRequestRule, Rule: r.Describe()}
		}
		refused.Rule = r.Describe()
	}
	return refused
}

// Command decides about a command.
func (s *SSH) Command(command string) Decision {
	if slices.Contains(s.Commands, command) {
		return Decision{Verdict: Allow, Reason: name.ReasonRequestRule, Rule: "command " + name.Quote(command)}
	}
	return Decision{Reason: name.ReasonRequestRule}
}

// HostKeyLines returns the keys as texts.
func (s *SSH) HostKeyLines() []string {
	out := make([]string, len(s.HostKeys))
	for i, k := range s.HostKeys {
		out[i] = k.String()
	}
	return slices.Clip(out)
}
