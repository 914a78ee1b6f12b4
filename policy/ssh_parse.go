package policy

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// Limits of logins to SSH servers.
const (
	maxHostKeys   = 32
	maxCommands   = 64
	maxCommand    = 1024 // bytes
	maxSSHUser    = 64
	wantSSH       = "an object of user, key and host_keys"
	wantSSHSecret = `{"secret": name}: a private key has several lines, and stands in the gateway's configuration alone`
)

// ssh reads a login to an SSH server.
func (p *headerParser) ssh(at string, v document.Value) *SSH {
	out := &SSH{}
	v.Fields(at, wantSSH, &p.Problems, map[string]func(string, document.Value){
		"user":      func(at string, v document.Value) { out.User = p.sshUser(at, v) },
		"key":       func(at string, v document.Value) { out.Source = p.sshKey(at, v) },
		"host_keys": func(at string, v document.Value) { out.HostKeys = p.hostKeys(at, v) },
		"repos":     func(at string, v document.Value) { out.Repos = p.sshRepos(at, v) },
		"commands":  func(at string, v document.Value) { out.Commands = p.sshCommands(at, v) },
	})
	if v.Kind != document.Object {
		return out
	}
	for _, key := range []string{"user", "key"} {
		if !v.Has(key) {
			p.Add(document.Pointer(at, key), "is missing")
		}
	}
	if !v.Has("host_keys") {
		p.Add(document.Pointer(at, "host_keys"), "is missing: a server is trusted by its key alone, never because it is the first that answers")
	}
	return out
}

func (p *headerParser) sshUser(at string, v document.Value) string {
	name := v.AsString(at, &p.Problems)
	bad := func(r rune) bool { return r <= ' ' || r == unicode.ReplacementChar || r == 0x7f }
	if v.Kind == document.Text && (name == "" || len(name) > maxSSHUser || !utf8.ValidString(name) || strings.ContainsFunc(name, bad)) {
		p.Add(at, "is not the name of a user: 1 to %d characters without spaces", maxSSHUser)
	}
	return name
}

// sshKey reads which secret is the private key. It may not stand in the rule itself.
func (p *headerParser) sshKey(at string, v document.Value) (source string) {
	if v.Kind != document.Object {
		p.Add(at, "is %s; want %s", v.Kind, wantSSHSecret)
		return ""
	}
	v.Fields(at, wantSSHSecret, &p.Problems, map[string]func(string, document.Value){
		"secret": func(at string, v document.Value) { source = p.source(at, v) },
	})
	if !v.Has("secret") {
		p.Add(at, "want %s", wantSSHSecret)
	}
	return source
}

func (p *headerParser) hostKeys(at string, v document.Value) (keys []HostKey) {
	lines := v.AsStrings(at, &p.Problems)
	if v.Kind == document.List && len(lines) == 0 {
		p.Add(at, "is empty: a server is trusted by its key alone, never because it is the first that answers")
	}
	if p.TooMany(at, len(lines), maxHostKeys) {
		return nil
	}
	for i, line := range lines {
		if v.Items[i].Kind != document.Text {
			continue
		}
		key, err := ParseHostKey(line)
		if err != nil {
			p.Add(document.Element(at, i), "%s", err)
		}
		keys = append(keys, key)
	}
	return keys
}

// sshRepos reads rules for repositories. Their names are checked when the host is known.
func (p *headerParser) sshRepos(at string, v document.Value) (repos []match.RepoRule) {
	if v.Kind != document.List || len(v.Items) == 0 {
		p.Add(at, "want a list of repositories with name and access; leave it out to allow all that the user may do")
		return nil
	}
	if p.TooMany(at, len(v.Items), match.MaxRepos) {
		return nil
	}
	for i, item := range v.Items {
		at := document.Element(at, i)
		var r match.RepoRule
		item.Fields(at, "an object of name and access", &p.Problems, map[string]func(string, document.Value){
			"name":   func(at string, v document.Value) { r.Name = v.AsString(at, &p.Problems) },
			"access": func(at string, v document.Value) { r.Access = v.AsString(at, &p.Problems) },
		})
		repos = append(repos, r)
	}
	return repos
}

func (p *headerParser) sshCommands(at string, v document.Value) []string {
	commands := v.AsStrings(at, &p.Problems)
	if v.Kind == document.List && len(commands) == 0 {
		p.Add(at, "is empty; leave it out to allow all that the user may do")
	}
	if p.TooMany(at, len(commands), maxCommands) {
		return nil
	}
	for i, c := range commands {
		switch {
		case v.Items[i].Kind != document.Text:
		case c == "" || len(c) > maxCommand:
			p.Add(document.Element(at, i), "is empty or longer than %d bytes", maxCommand)
		case !utf8.ValidString(c) || strings.ContainsFunc(c, unicode.IsControl):
			p.Add(document.Element(at, i), "has a control character")
		}
	}
	return commands
}

// sshHost checks the repositories of a login for its host.
func (p *headerParser) sshHost(at string, host name.Pattern, s *SSH) {
	for i, r := range s.Repos {
		r.Host = host.Name().String()
		r.CheckPath(document.Element(document.Pointer(document.Pointer(at, "ssh"), "repos"), i), &p.Problems)
	}
}

// document is the reverse of ssh.
func (s *SSH) document() map[string]any {
	out := map[string]any{"user": s.User, "key": map[string]string{"secret": s.Source}, "host_keys": s.HostKeyLines()}
	if len(s.Repos) > 0 {
		out["repos"] = s.Repos
	}
	if len(s.Commands) > 0 {
		out["commands"] = s.Commands
	}
	return out
}
