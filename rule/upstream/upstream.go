// Package upstream is the kind of rules that authenticate the gateway to an upstream proxy:
//
//	{"proxy": {"scheme": "socks5", "username": "boxes", "password": {"secret": "proxy-password"}}}
//
// Such a rule does not apply to requests of boxes. The policy decides which connections use the proxy.
package upstream

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Key is the member of a rule's document.
const Key = "proxy"

// schemes lists the schemes of proxies, the default first.
var schemes = []string{"https", "http", "socks5"}

// Kind reads logins to upstream proxies.
type Kind struct {
	rule.LoginForms[form, entry, view]
}

// entry is the JSON of an entry with a login.
type entry struct {
	Proxy form `json:"proxy" doc:"what the gateway authenticates by to this upstream proxy; the pattern must be a host with a port, and no box is given it"`
}

// SchemaName is the name of the entry in the description of the API.
func (entry) SchemaName() string { return "proxyLoginBody" }

// form is the JSON of the member.
type form struct {
	Scheme   string         `json:"scheme,omitempty" enum:"https http socks5" doc:"of the proxy that the login is for; absent: https. The password of the others passes in clear text, and is not given to one of another scheme"`
	Username string         `json:"username"`
	Password rule.ValueForm `json:"password" doc:"a literal or a secret, without prefix or suffix"`
}

// SchemaName is the name of the form in the description of the API.
func (form) SchemaName() string { return "proxyBody" }

// view is the JSON of a login as shown by the API.
type view struct {
	Scheme   string `json:"scheme" enum:"https http socks5" doc:"of the proxy that it is for"`
	Username string `json:"username"`
	Secret   string `json:"secret,omitempty" doc:"as for a header"`
}

// SchemaName is the name of the view in the description of the API.
func (view) SchemaName() string { return "proxyView" }

// Key implements [rule.Kind].
func (Kind) Key() string { return Key }

// Doc implements [rule.Kind].
func (Kind) Doc() string { return "authenticate to an upstream proxy" }

// Example implements [rule.Kind].
func (Kind) Example() string {
	return `{"scheme": "socks5", "username": "boxes", "password": {"secret": "proxy-password"}}`
}

// UsualPort implements [rule.LoginKind].
func (Kind) UsualPort() uint16 { return 3128 }

// OnWebPorts implements [rule.LoginKind].
func (Kind) OnWebPorts() bool { return true }

// Line implements [rule.Kind]. The list has no such rules: they do not apply to requests of boxes.
func (Kind) Line(json.RawMessage) string { return "" }

// Parse implements [rule.Kind]. It refuses texts that SOCKS (RFC 1929) or basic authentication (RFC 7617) cannot carry.
func (Kind) Parse(at string, v document.Value, c *rule.Context) rule.Effect {
	before := len(c.List)
	l := &login{}
	v.Fields(at, "an object of username and password", &c.Problems, map[string]func(string, document.Value){
		"scheme": func(at string, v document.Value) {
			if l.scheme = v.AsString(at, &c.Problems); !slices.Contains(schemes, l.scheme) && v.Kind == document.Text {
				c.Add(at, `is %s; use "https", "http" or "socks5"`, name.Quote(v.Text))
			}
		},
		"username": func(at string, v document.Value) {
			l.user = v.AsString(at, &c.Problems)
			if err := CheckUser(l.user); err != nil && v.Kind == document.Text {
				c.Add(at, "%s", err)
			}
		},
		"password": func(at string, v document.Value) {
			l.password = c.Value(at, "password", v, false)
			if err := CheckPassword(l.password.Literal); err != nil && l.password.Source == "" {
				c.Add(at, "%s", err)
			}
		},
	})
	c.Required(at, v, "username", "password")
	if len(c.List) > before {
		return nil
	}
	return l
}

// maxText is the length limit of user names and passwords in SOCKS (RFC 1929), in bytes.
const maxText = 255

// CheckUser checks a user name, which must not have a colon because of basic authentication (RFC 7617, 2). The error completes a sentence about
// it.
func CheckUser(user string) error {
	if user == "" || len(user) > maxText || !utf8.ValidString(user) || strings.ContainsFunc(user, unicode.IsControl) || strings.Contains(user, ":") {
		return errors.New("is empty, longer than 255 bytes, or has a colon or a control character")
	}
	return nil
}

// CheckPassword checks a password. The error completes a sentence about it and does not quote it.
func CheckPassword(password name.Secret) error {
	if text := password.Reveal(); text == "" || len(text) > maxText || strings.ContainsFunc(text, unicode.IsControl) {
		return errors.New("is empty, longer than 255 bytes, or has a control character")
	}
	return nil
}

// login authenticates the gateway to an upstream proxy.
type login struct {
	// scheme is the only scheme of proxies that are given the login. Empty is https, so that an API key that may change the policy but not
	// the login cannot make the gateway send it in clear text.
	scheme, user string
	password     rule.Value
}

// New returns a login to proxies with a scheme; "" is https.
func New(scheme, user string, password rule.Value) rule.ProxyLogin {
	return &login{scheme, user, password}
}

// Key implements [rule.Effect].
func (*login) Key() string { return Key }

// Document implements [rule.Effect].
func (l *login) Document() any {
	out := map[string]any{"username": l.user, "password": l.password.Plain()}
	if l.scheme != "" {
		out["scheme"] = l.scheme
	}
	return out
}

// Show implements [rule.Effect].
func (l *login) Show() any { return view{cmp.Or(l.scheme, schemes[0]), l.user, l.password.Source} }

// Equal implements [rule.Effect].
func (l *login) Equal(other rule.Effect) bool {
	o, ok := other.(*login)
	return ok && l.scheme == o.scheme && l.user == o.user && l.password.Equal(o.password)
}

// Sources implements [rule.Sourced].
func (l *login) Sources() []string { return l.password.Sources() }

// IsFor implements [rule.ProxyLogin].
func (l *login) IsFor(scheme string) bool { return cmp.Or(l.scheme, schemes[0]) == scheme }

// Username implements [rule.ProxyLogin].
func (l *login) Username() string { return l.user }

// Password implements [rule.ProxyLogin].
func (l *login) Password() rule.Value { return l.password }
