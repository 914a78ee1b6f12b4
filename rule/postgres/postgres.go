// Package postgres is the kind of rules that have the gateway log in to a PostgreSQL server for the box:
//
//	{"postgres": {"user": "app", "database": "orders", "password": {"secret": "orders-db"}}}
//
// Package proxy/postgres implements the protocol.
package postgres

import (
	"encoding/json"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Key is the member of a rule's document.
const Key = "postgres"

// Kind reads logins to PostgreSQL servers.
type Kind struct {
	rule.LoginForms[form, entry, view]
}

// entry is the JSON of an entry with a login.
type entry struct {
	Postgres form `json:"postgres" doc:"the gateway logs in to this PostgreSQL server in the place of the box; the pattern must be a host with a port"`
}

// SchemaName is the name of the entry in the description of the API.
func (entry) SchemaName() string { return "loginBody" }

// form is the JSON of the member.
type form struct {
	User     string         `json:"user" doc:"the only one as whom the box may connect"`
	Database string         `json:"database" doc:"the only one that the box may connect to"`
	Password rule.ValueForm `json:"password" doc:"a literal or a secret, without prefix or suffix"`
	Auth     string         `json:"auth,omitempty" doc:"scram-sha-256 (default), or a weaker way in which the password may be proved as well: password (inside TLS), md5"`
}

// SchemaName is the name of the form in the description of the API.
func (form) SchemaName() string { return "postgresBody" }

// view is the JSON of a login as shown by the API.
type view struct {
	User     string `json:"user"`
	Database string `json:"database"`
	Secret   string `json:"secret,omitempty" doc:"as for a header"`
	Auth     string `json:"auth"`
}

// SchemaName is the name of the view in the description of the API.
func (view) SchemaName() string { return "postgresView" }

// Key implements [rule.Kind].
func (Kind) Key() string { return Key }

// Doc implements [rule.Kind].
func (Kind) Doc() string { return "log in to a PostgreSQL server in the place of the box" }

// Example implements [rule.Kind].
func (Kind) Example() string {
	return `{"user": "app", "database": "orders", "password": {"secret": "orders-db"}, "auth": "md5"}`
}

// UsualPort implements [rule.LoginKind].
func (Kind) UsualPort() uint16 { return 5432 }

// Line implements [rule.Kind].
func (Kind) Line(shown json.RawMessage) string {
	var v view
	if json.Unmarshal(shown, &v) != nil || v.User == "" {
		return ""
	}
	return rule.LineWithSecret("postgres: "+v.User+" in "+v.Database, v.Secret)
}

// Parse implements [rule.Kind].
func (Kind) Parse(at string, v document.Value, c *rule.Context) rule.Effect {
	before := len(c.List)
	l := &Login{}
	text := func(to *string) func(string, document.Value) {
		return func(at string, v document.Value) { *to = identifier(at, v, &c.Problems) }
	}
	v.Fields(at, "an object of user, database and password", &c.Problems, map[string]func(string, document.Value){
		"user":     text(&l.User),
		"database": text(&l.Database),
		"password": func(at string, v document.Value) {
			if l.Password = c.Value(at, "password", v, false); l.Password.Source == "" && l.Password.Literal.Reveal() == "" {
				c.Add(at, "is empty")
			}
		},
		"auth": func(at string, v document.Value) {
			way, ok := v.AsString(at, &c.Problems), false
			if l.Auth, ok = auths[way]; !ok && v.Kind == document.Text {
				c.Add(at, `is %s; use "scram-sha-256", "password" or "md5"`, name.Quote(way))
			}
		},
	})
	c.Required(at, v, "user", "database", "password")
	if len(c.List) > before {
		return nil
	}
	return l
}

// maxIdentifier is the length limit of names, in bytes. PostgreSQL truncates names to 63 bytes by default (NAMEDATALEN).
const maxIdentifier = 256

// identifier reads the name of a user or database.
func identifier(at string, v document.Value, ps *document.Problems) string {
	name := v.AsString(at, ps)
	switch {
	case v.Kind != document.Text:
	case name == "" || len(name) > maxIdentifier:
		ps.Add(at, "is empty or longer than %d bytes", maxIdentifier)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		ps.Add(at, "has a control character")
	}
	return name
}

// Login is a login to a PostgreSQL server: one user, one database.
type Login struct {
	User, Database string
	Password       rule.Value
	Auth           Auth
}

// Auth is the weakest authentication method that may be used with the password. The zero value is the strongest.
type Auth uint8

// The authentication methods. Each allows SCRAM as well, which is used if the server offers it.
const (
	SCRAM    Auth = iota // SCRAM-SHA-256, with channel binding if the server supports it
	Password             // the password itself, inside TLS
	MD5                  // its MD5 hash
)

// auths maps PostgreSQL's names to methods.
var auths = map[string]Auth{"scram-sha-256": SCRAM, "password": Password, "md5": MD5}

// String returns the name of the method in pg_hba.conf.
func (a Auth) String() string {
	for name, auth := range auths {
		if auth == a {
			return name
		}
	}
	return "none"
}

// Key implements [rule.Effect].
func (*Login) Key() string { return Key }

// Document implements [rule.Effect].
func (l *Login) Document() any {
	out := map[string]any{"user": l.User, "database": l.Database, "password": l.Password.Plain()}
	if l.Auth != SCRAM {
		out["auth"] = l.Auth.String()
	}
	return out
}

// Show implements [rule.Effect].
func (l *Login) Show() any { return view{l.User, l.Database, l.Password.Source, l.Auth.String()} }

// Equal implements [rule.Effect].
func (l *Login) Equal(other rule.Effect) bool {
	o, ok := other.(*Login)
	return ok && l.User == o.User && l.Database == o.Database && l.Auth == o.Auth && l.Password.Equal(o.Password)
}

// Sources implements [rule.Sourced].
func (l *Login) Sources() []string { return l.Password.Sources() }

// URL implements [rule.Login].
func (l *Login) URL(authority string) string {
	u := url.URL{Scheme: "postgres", User: url.User(l.User), Host: authority, Path: "/" + l.Database}
	return u.String()
}
