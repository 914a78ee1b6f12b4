package policy

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"boxgate/policy/document"
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

// HostKey is a public key in the form of RFC 4253, 6.6.
type HostKey struct {
	Authority bool // signs the certificates of hosts; it is no host's own key
	Blob      string
}

// authorityMark stands before the key of an authority, as in known_hosts (sshd(8)).
const authorityMark = "@cert-authority"

// hostKeyTypes are the types of keys that servers may prove themselves with, and for each how long the last part of a key is;
// 0: that varies.
var hostKeyTypes = map[string]int{
	"ssh-ed25519": 32, "ecdsa-sha2-nistp256": 65, "ecdsa-sha2-nistp384": 97, "ecdsa-sha2-nistp521": 133, "ssh-rsa": 0,
}

// minRSAModulus is the length of the modulus of an RSA key with 2048 bits.
const minRSAModulus = 256

var (
	errHostKeyForm = errors.New(`is no public key; want a type and the key, as in "ssh-ed25519 AAAA…"`)
	errHostKeyBlob = errors.New("has a key that is cut short or not of its type")
)

// ParseHostKey reads a public key as it stands in known_hosts after the names of hosts, perhaps with the mark of an authority
// before it. A comment is left out.
func ParseHostKey(line string) (HostKey, error) {
	fields := strings.Fields(line)
	k := HostKey{}
	if len(fields) > 0 && fields[0] == authorityMark {
		k.Authority, fields = true, fields[1:]
	}
	if len(fields) > 2 && !isHostKeyType(fields[0]) && isHostKeyType(fields[1]) {
		return HostKey{}, fmt.Errorf("begins with the name of a host; use %s", name.Quote(strings.Join(fields[1:3], " ")))
	}
	if len(fields) < 2 {
		return HostKey{}, errHostKeyForm
	}
	if !isHostKeyType(fields[0]) {
		return HostKey{}, fmt.Errorf("%s is no type of a host's key; use ssh-ed25519, ecdsa-sha2-nistp256, -384 or -521, or ssh-rsa", name.Quote(fields[0]))
	}
	blob, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil || !isKeyBlob(fields[0], blob) {
		return HostKey{}, errHostKeyBlob
	}
	k.Blob = string(blob)
	return k, nil
}

func isHostKeyType(s string) bool {
	_, ok := hostKeyTypes[s]
	return ok
}

// isKeyBlob reports whether a blob is laid out like a key of its type.
func isKeyBlob(kind string, blob []byte) bool {
	var parts [][]byte
	for len(blob) >= 4 {
		n := binary.BigEndian.Uint32(blob)
		if blob = blob[4:]; uint64(n) > uint64(len(blob)) {
			return false
		}
		parts, blob = append(parts, blob[:n]), blob[n:]
	}
	if len(blob) > 0 || len(parts) < 2 || string(parts[0]) != kind {
		return false
	}
	last := len(parts[len(parts)-1])
	switch curve, isECDSA := strings.CutPrefix(kind, "ecdsa-sha2-"); {
	case isECDSA:
		return len(parts) == 3 && string(parts[1]) == curve && last == hostKeyTypes[kind]
	case kind == "ssh-rsa":
		return len(parts) == 3 && last >= minRSAModulus && last <= 8*minRSAModulus
	default:
		return len(parts) == 2 && last == hostKeyTypes[kind]
	}
}

// String returns the key as ParseHostKey reads it.
func (k HostKey) String() string {
	kind := ""
	if n := len(k.Blob); n > 4 {
		kind = k.Blob[4:min(n, 4+int(binary.BigEndian.Uint32([]byte(k.Blob[:4]))))]
	}
	text := kind + " " + base64.StdEncoding.EncodeToString([]byte(k.Blob))
	if k.Authority {
		text = authorityMark + " " + text
	}
	return text
}

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
		"secret": func(at string, v document.Value) { source = p.Source(at, v) },
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
