// Package ssh is the kind of rules that have the gateway log in to an SSH server for the box, with a key that the box never sees:
//
//	{"ssh": {"user": "git", "key": {"secret": "forge-key"}, "host_keys": ["ssh-ed25519 AAAA…"], "repos": [{"name": "acme/web", "access": "push"}]}}
//
// Package proxy/ssh implements the protocol.
package ssh

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Key is the member of a rule's document.
const Key = "ssh"

// Kind reads logins to SSH servers.
type Kind struct {
	rule.LoginForms[form, entry, view]
}

// entry is the JSON of an entry with a login.
type entry struct {
	SSH form `json:"ssh" doc:"the gateway logs in to this SSH server in the place of the box; the pattern must be a host with a port"`
}

// SchemaName is the name of the entry in the description of the API.
func (entry) SchemaName() string { return "sshLoginBody" }

// form is the JSON of the member.
type form struct {
	User     string    `json:"user" doc:"the only one as whom the box may log in"`
	Key      keyForm   `json:"key" doc:"the private key, which is a document in the configuration"`
	HostKeys []string  `json:"host_keys" doc:"public keys of the server, as in known_hosts after the names; @cert-authority before one that signs host certificates"`
	Repos    []sshRepo `json:"repos,omitempty" doc:"the box may pull from and push to these repositories, and do nothing else but run commands"`
	Commands []string  `json:"commands,omitempty" doc:"the box may run these commands, exactly as they are, and do nothing else but use repos"`
}

// SchemaName is the name of the form in the description of the API.
func (form) SchemaName() string { return "sshBody" }

type keyForm struct {
	Secret string `json:"secret" doc:"name of a secret in the gateway's configuration"`
}

// SchemaName is the name of the form in the description of the API.
func (keyForm) SchemaName() string { return "secretBody" }

type sshRepo struct {
	Name   string `json:"name" doc:"owner/repository, or a longer path; without .git"`
	Access string `json:"access" enum:"read push"`
}

// SchemaName is the name of the form in the description of the API.
func (sshRepo) SchemaName() string { return "sshRepoBody" }

// view is the JSON of a login as shown by the API.
type view struct {
	User     string           `json:"user"`
	Secret   string           `json:"secret" doc:"as for a header"`
	HostKeys []string         `json:"host_keys"`
	Repos    []match.RepoRule `json:"repos,omitempty"`
	Commands []string         `json:"commands,omitempty"`
}

// SchemaName is the name of the view in the description of the API.
func (view) SchemaName() string { return "sshView" }

// Key implements [rule.Kind].
func (Kind) Key() string { return Key }

// Doc implements [rule.Kind].
func (Kind) Doc() string { return "log in to an SSH server in the place of the box" }

// Example implements [rule.Kind].
func (Kind) Example() string {
	return `{"user": "git", "key": {"secret": "forge-key"}, "host_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"],
		"repos": [{"name": "acme/web", "access": "push"}], "commands": ["uptime"]}`
}

// UsualPort implements [rule.LoginKind].
func (Kind) UsualPort() uint16 { return 22 }

// Line implements [rule.Kind].
func (Kind) Line(shown json.RawMessage) string {
	var v view
	if json.Unmarshal(shown, &v) != nil || v.User == "" {
		return ""
	}
	return rule.LineWithSecret("ssh: "+v.User, v.Secret)
}

// Parse implements [rule.Kind].
func (Kind) Parse(at string, v document.Value, c *rule.Context) rule.Effect {
	before := len(c.List)
	l := &Login{}
	v.Fields(at, want, &c.Problems, map[string]func(string, document.Value){
		"user":      func(at string, v document.Value) { l.User = user(at, v, &c.Problems) },
		"key":       func(at string, v document.Value) { l.Secret = key(at, v, c) },
		"host_keys": func(at string, v document.Value) { l.HostKeys = hostKeys(at, v, &c.Problems) },
		"repos":     func(at string, v document.Value) { l.Repos = repos(at, v, c) },
		"commands":  func(at string, v document.Value) { l.Commands = commands(at, v, &c.Problems) },
	})
	c.Required(at, v, "user", "key")
	if v.Kind == document.Object && !v.Has("host_keys") {
		c.Add(document.Pointer(at, "host_keys"), "is missing: a server is trusted by its key alone, never because it is the first that answers")
	}
	if len(c.List) > before {
		return nil
	}
	return l
}

// Login is a login to an SSH server as one user with a private key of the gateway, and the permissions of the box there.
type Login struct {
	User     string
	Secret   string    // name of the secret with the private key
	HostKeys []HostKey // the server must have one of them
	// Repos and Commands are the allowed operations. If both are empty, everything without forwarding is allowed.
	Repos    []match.RepoRule // git repositories on the host of the login
	Commands []string         // whole command lines
}

// Key implements [rule.Effect].
func (*Login) Key() string { return Key }

// Document implements [rule.Effect].
func (l *Login) Document() any {
	out := map[string]any{"user": l.User, "key": map[string]string{"secret": l.Secret}, "host_keys": l.hostKeyLines()}
	if len(l.Repos) > 0 {
		out["repos"] = l.Repos
	}
	if len(l.Commands) > 0 {
		out["commands"] = l.Commands
	}
	return out
}

// Show implements [rule.Effect].
func (l *Login) Show() any { return view{l.User, l.Secret, l.hostKeyLines(), l.Repos, l.Commands} }

// Equal implements [rule.Effect].
func (l *Login) Equal(other rule.Effect) bool {
	o, ok := other.(*Login)
	return ok && l.User == o.User && l.Secret == o.Secret && slices.Equal(l.HostKeys, o.HostKeys) &&
		slices.Equal(l.Repos, o.Repos) && slices.Equal(l.Commands, o.Commands)
}

// Sources implements [rule.Sourced].
func (l *Login) Sources() []string { return []string{l.Secret} }

// URL implements [rule.Login].
func (l *Login) URL(authority string) string {
	u := url.URL{Scheme: "ssh", User: url.User(l.User), Host: authority}
	return u.String()
}

// Limited reports whether Repos or Commands limit the box.
func (l *Login) Limited() bool { return len(l.Repos)+len(l.Commands) > 0 }

// The services of git over SSH.
const (
	gitUploadPack    = "git-upload-pack"
	gitReceivePack   = "git-receive-pack"
	gitUploadArchive = "git-upload-archive"
)

// GitServices are the programs of git that a server runs for its clients.
func GitServices() []string { return []string{gitUploadPack, gitReceivePack, gitUploadArchive} }

// Repo reports whether a service of git on a repository is allowed, and the repository of the rule that decided, "" if there is none.
// A leading slash and a trailing .git of the path make no difference. Access to push includes access to read.
func (l *Login) Repo(host name.Name, service, path string) (repo string, allowed bool) {
	if !slices.Contains(GitServices(), service) {
		return "", false
	}
	n := strings.TrimPrefix(path, "/")
	for _, r := range l.Repos {
		if !match.SameRepo(host, r.Name, n) {
			continue
		}
		r.Host = host.String()
		if repo = r.Describe(); service != gitReceivePack || r.Access == match.AccessPush {
			return repo, true
		}
	}
	return repo, false
}

// Command reports whether a command is allowed.
func (l *Login) Command(command string) bool { return slices.Contains(l.Commands, command) }

// hostKeyLines returns the keys in the form of known_hosts.
func (l *Login) hostKeyLines() []string {
	out := make([]string, len(l.HostKeys))
	for i, k := range l.HostKeys {
		out[i] = k.String()
	}
	return slices.Clip(out)
}

// HostKey is a public key in the form of RFC 4253, 6.6.
type HostKey struct {
	Authority bool // the key signs certificates of hosts, and is not the key of a host
	Blob      string
}

// authorityMark precedes the key of an authority, as in known_hosts (sshd(8)).
const authorityMark = "@cert-authority"

// hostKeyTypes maps the accepted types of host keys to the length of the last part of a key, in bytes; 0 if it varies.
var hostKeyTypes = map[string]int{
	"ssh-ed25519": 32, "ecdsa-sha2-nistp256": 65, "ecdsa-sha2-nistp384": 97, "ecdsa-sha2-nistp521": 133, "ssh-rsa": 0,
}

// minRSAModulus is the length of the modulus of a 2048-bit RSA key, in bytes.
const minRSAModulus = 256

var (
	errHostKeyForm = errors.New(`is no public key; want a type and the key, as in "ssh-ed25519 AAAA…"`)
	errHostKeyBlob = errors.New("has a key that is cut short or not of its type")
)

// ParseHostKey parses a line of known_hosts without the names of hosts: optionally the mark of an authority, a type and a key. A comment is
// ignored.
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

// isKeyBlob reports whether a blob has the layout of a key of this type.
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

// String is the inverse of [ParseHostKey].
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
	maxHostKeys = 32
	maxCommands = 64
	maxCommand  = 1024 // bytes
	maxUser     = 64
	want        = "an object of user, key and host_keys"
	wantSecret  = `{"secret": name}: a private key has several lines, and stands in the gateway's configuration alone`
)

func user(at string, v document.Value, ps *document.Problems) string {
	name := v.AsString(at, ps)
	bad := func(r rune) bool { return r <= ' ' || r == unicode.ReplacementChar || r == 0x7f }
	if v.Kind == document.Text && (name == "" || len(name) > maxUser || !utf8.ValidString(name) || strings.ContainsFunc(name, bad)) {
		ps.Add(at, "is not the name of a user: 1 to %d characters without spaces", maxUser)
	}
	return name
}

// key reads the name of the secret with the private key. A literal key is refused.
func key(at string, v document.Value, c *rule.Context) (source string) {
	if v.Kind != document.Object {
		c.Add(at, "is %s; want %s", v.Kind, wantSecret)
		return ""
	}
	v.Fields(at, wantSecret, &c.Problems, map[string]func(string, document.Value){
		"secret": func(at string, v document.Value) { source = c.Source(at, v) },
	})
	if !v.Has("secret") {
		c.Add(at, "want %s", wantSecret)
	}
	return source
}

func hostKeys(at string, v document.Value, ps *document.Problems) (keys []HostKey) {
	lines := v.AsStrings(at, ps)
	if v.Kind == document.List && len(lines) == 0 {
		ps.Add(at, "is empty: a server is trusted by its key alone, never because it is the first that answers")
	}
	if ps.TooMany(at, len(lines), maxHostKeys) {
		return nil
	}
	for i, line := range lines {
		if v.Items[i].Kind != document.Text {
			continue
		}
		key, err := ParseHostKey(line)
		if err != nil {
			ps.Add(document.Element(at, i), "%s", err)
		}
		keys = append(keys, key)
	}
	return keys
}

// repos reads rules for repositories of the host.
func repos(at string, v document.Value, c *rule.Context) (repos []match.RepoRule) {
	if v.Kind != document.List || len(v.Items) == 0 {
		c.Add(at, "want a list of repositories with name and access; leave it out to allow all that the user may do")
		return nil
	}
	if c.TooMany(at, len(v.Items), match.MaxRepos) {
		return nil
	}
	for i, item := range v.Items {
		at := document.Element(at, i)
		var r match.RepoRule
		item.Fields(at, "an object of name and access", &c.Problems, map[string]func(string, document.Value){
			"name":   func(at string, v document.Value) { r.Name = v.AsString(at, &c.Problems) },
			"access": func(at string, v document.Value) { r.Access = v.AsString(at, &c.Problems) },
		})
		repos = append(repos, r)
		if r.Host = c.Host.Name().String(); !c.Host.IsZero() {
			r.CheckPath(at, &c.Problems)
		}
	}
	return repos
}

func commands(at string, v document.Value, ps *document.Problems) []string {
	commands := v.AsStrings(at, ps)
	if v.Kind == document.List && len(commands) == 0 {
		ps.Add(at, "is empty; leave it out to allow all that the user may do")
	}
	if ps.TooMany(at, len(commands), maxCommands) {
		return nil
	}
	for i, c := range commands {
		switch {
		case v.Items[i].Kind != document.Text:
		case c == "" || len(c) > maxCommand:
			ps.Add(document.Element(at, i), "is empty or longer than %d bytes", maxCommand)
		case !utf8.ValidString(c) || strings.ContainsFunc(c, unicode.IsControl):
			ps.Add(document.Element(at, i), "has a control character")
		}
	}
	return commands
}
