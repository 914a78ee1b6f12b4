package policy

import (
	"boxgate/policy/name"
	"strings"
	"unicode"
	"unicode/utf8"
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
func (p *headerParser) ssh(at string, v value) *SSH {
	out := &SSH{}
	v.fields(at, wantSSH, &p.problems, map[string]func(string, value){
		"user":      func(at string, v value) { out.User = p.sshUser(at, v) },
		"key":       func(at string, v value) { out.Source = p.sshKey(at, v) },
		"host_keys": func(at string, v value) { out.HostKeys = p.hostKeys(at, v) },
		"repos":     func(at string, v value) { out.Repos = p.sshRepos(at, v) },
		"commands":  func(at string, v value) { out.Commands = p.sshCommands(at, v) },
	})
	if v.kind != kindObject {
		return out
	}
	for _, key := range []string{"user", "key"} {
		if !v.has(key) {
			p.add(pointer(at, key), "is missing")
		}
	}
	if !v.has("host_keys") {
		p.add(pointer(at, "host_keys"), "is missing: a server is trusted by its key alone, never because it is the first that answers")
	}
	return out
}

func (p *headerParser) sshUser(at string, v value) string {
	name := v.string(at, &p.problems)
	bad := func(r rune) bool { return r <= ' ' || r == unicode.ReplacementChar || r == 0x7f }
	if v.kind == kindText && (name == "" || len(name) > maxSSHUser || !utf8.ValidString(name) || strings.ContainsFunc(name, bad)) {
		p.add(at, "is not the name of a user: 1 to %d characters without spaces", maxSSHUser)
	}
	return name
}

// sshKey reads which secret is the private key. It may not stand in the rule itself.
func (p *headerParser) sshKey(at string, v value) (source string) {
	if v.kind != kindObject {
		p.add(at, "is %s; want %s", v.kind, wantSSHSecret)
		return ""
	}
	v.fields(at, wantSSHSecret, &p.problems, map[string]func(string, value){
		"secret": func(at string, v value) { source = p.source(at, v) },
	})
	if !v.has("secret") {
		p.add(at, "want %s", wantSSHSecret)
	}
	return source
}

func (p *headerParser) hostKeys(at string, v value) (keys []HostKey) {
	lines := v.strings(at, &p.problems)
	if v.kind == kindList && len(lines) == 0 {
		p.add(at, "is empty: a server is trusted by its key alone, never because it is the first that answers")
	}
	if tooMany(at, len(lines), maxHostKeys, &p.problems) {
		return nil
	}
	for i, line := range lines {
		if v.items[i].kind != kindText {
			continue
		}
		key, err := ParseHostKey(line)
		if err != nil {
			p.add(element(at, i), "%s", err)
		}
		keys = append(keys, key)
	}
	return keys
}

// sshRepos reads rules for repositories. Their names are checked when the host is known.
func (p *headerParser) sshRepos(at string, v value) (repos []RepoRule) {
	if v.kind != kindList || len(v.items) == 0 {
		p.add(at, "want a list of repositories with name and access; leave it out to allow all that the user may do")
		return nil
	}
	if tooMany(at, len(v.items), maxRepos, &p.problems) {
		return nil
	}
	for i, item := range v.items {
		at := element(at, i)
		var r RepoRule
		item.fields(at, "an object of name and access", &p.problems, map[string]func(string, value){
			"name":   func(at string, v value) { r.Name = v.string(at, &p.problems) },
			"access": func(at string, v value) { r.Access = v.string(at, &p.problems) },
		})
		repos = append(repos, r)
	}
	return repos
}

func (p *headerParser) sshCommands(at string, v value) []string {
	commands := v.strings(at, &p.problems)
	if v.kind == kindList && len(commands) == 0 {
		p.add(at, "is empty; leave it out to allow all that the user may do")
	}
	if tooMany(at, len(commands), maxCommands, &p.problems) {
		return nil
	}
	for i, c := range commands {
		switch {
		case v.items[i].kind != kindText:
		case c == "" || len(c) > maxCommand:
			p.add(element(at, i), "is empty or longer than %d bytes", maxCommand)
		case !utf8.ValidString(c) || strings.ContainsFunc(c, unicode.IsControl):
			p.add(element(at, i), "has a control character")
		}
	}
	return commands
}

// sshHost checks the repositories of a login for its host.
func (p *headerParser) sshHost(at string, host name.Pattern, s *SSH) {
	for i, r := range s.Repos {
		r.Host = host.Name().String()
		r.checkPath(element(pointer(pointer(at, "ssh"), "repos"), i), &p.problems)
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
