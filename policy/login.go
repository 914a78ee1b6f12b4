package policy

import (
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// Login says how the gateway logs in to a server that does not speak HTTP, in the place of the box, which has no
// credentials for it. Exactly one field is set. It is given to a host and port alone: a connection to them either is one
// that the gateway logs in, or is refused.
type Login struct {
	Postgres *Postgres
	SSH      *SSH
	// Proxy is that of the gateway itself, to an upstream proxy. It is of no use to a box that connects there.
	Proxy *ProxyLogin
}

// Postgres is a login to a PostgreSQL server: one user, one database.
type Postgres struct {
	User, Database string
	Password       name.Secret // the literal; empty when Source is set
	Source         string      // name of a secret in the gateway's configuration; "" for a literal
	Auth           PostgresAuth
}

// PostgresAuth says in which ways the password may be proved to the server. The zero value is the narrowest.
type PostgresAuth uint8

// The ways. The weaker ones are for servers that offer no better: a server that offers SCRAM gets SCRAM.
const (
	AuthSCRAM    PostgresAuth = iota // SCRAM-SHA-256, bound to the TLS connection where the server can
	AuthPassword                     // or the password itself, inside TLS
	AuthMD5                          // or its MD5 hash
)

// postgresAuths are the ways by the names that PostgreSQL has for them.
var postgresAuths = map[string]PostgresAuth{"scram-sha-256": AuthSCRAM, "password": AuthPassword, "md5": AuthMD5}

// String returns the name of the way in pg_hba.conf.
func (a PostgresAuth) String() string {
	for name, auth := range postgresAuths {
		if auth == a {
			return name
		}
	}
	return "none"
}

// ParsePostgresAuth is the reverse of [PostgresAuth.String].
func ParsePostgresAuth(s string) (a PostgresAuth, ok bool) {
	a, ok = postgresAuths[s]
	return a, ok
}

// Source returns the name of the secret that the login needs; "" if it is a literal.
func (l *Login) Source() string {
	switch {
	case l.SSH != nil:
		return l.SSH.Source
	case l.Proxy != nil:
		return l.Proxy.Source
	}
	return l.Postgres.Source
}

// Equal reports whether two logins are the same: what one of them began may go on under the other.
func (l *Login) Equal(o *Login) bool {
	if l == nil || o == nil {
		return l == o
	}
	switch {
	case l.SSH != nil || o.SSH != nil:
		return l.SSH.Equal(o.SSH)
	case l.Proxy != nil || o.Proxy != nil:
		return l.Proxy.equal(o.Proxy)
	}
	a, b := *l.Postgres, *o.Postgres
	same := a.Password.Equal(b.Password)
	a.Password, b.Password = name.Secret{}, name.Secret{}
	return same && a == b
}

// URL says what is logged in to and as whom, for the decision log. authority is the host and port.
func (l *Login) URL(authority string) string {
	if l.SSH != nil {
		u := url.URL{Scheme: "ssh", User: url.User(l.SSH.User), Host: authority}
		return u.String()
	}
	if l.Proxy != nil {
		u := url.URL{Scheme: "proxy", User: url.User(l.Proxy.User), Host: authority}
		return u.String()
	}
	u := url.URL{Scheme: "postgres", User: url.User(l.Postgres.User), Host: authority, Path: "/" + l.Postgres.Database}
	return u.String()
}

// ProxyLogin is what the gateway authenticates by to an upstream proxy.
type ProxyLogin struct {
	// Scheme is that of the proxy which the login is for: to one that is spoken to in another way it is not given. Empty is
	// https: whoever may change the policy, and not the login, cannot have the login sent in clear text.
	Scheme   ProxyScheme
	User     string
	Password name.Secret // the literal; empty when Source is set
	Source   string      // name of a secret in the gateway's configuration; "" for a literal
}

// IsFor reports whether the login may be given to a proxy that is spoken to by a scheme.
func (l *ProxyLogin) IsFor(scheme ProxyScheme) bool {
	return l != nil && (l.Scheme == scheme || l.Scheme == "" && scheme == ProxyHTTPS)
}

// equal reports whether two logins are the same.
func (l *ProxyLogin) equal(o *ProxyLogin) bool {
	if l == nil || o == nil {
		return l == o
	}
	return l.Scheme == o.Scheme && l.User == o.User && l.Source == o.Source && l.Password.Equal(o.Password)
}

// loginKeys are the keys of entries for servers that do not speak HTTP.
var loginKeys = []string{"postgres", "ssh", "proxy"}

// isLogin reports whether an entry is that of a server that does not speak HTTP. A header that is set to a text is none,
// whatever its name.
func isLogin(entry document.Value) bool {
	return entry.Kind == document.Object && slices.ContainsFunc(loginKeys, entry.Has) && !isCompact(entry)
}

// login reads such an entry.
func (p *headerParser) login(at string, entry document.Value) *Login {
	login := &Login{}
	if len(entry.Keys) > 1 {
		p.Add(at, "has a login, which stands alone: nothing else can be done with a protocol other than HTTP")
	}
	for i, key := range entry.Keys {
		switch key {
		case "postgres":
			login.Postgres = p.postgres(document.Pointer(at, key), entry.Items[i])
		case "ssh":
			login.SSH = p.ssh(document.Pointer(at, key), entry.Items[i])
		case "proxy":
			login.Proxy = p.proxy(document.Pointer(at, key), entry.Items[i])
		}
	}
	return login
}

// loginHost says what is wrong with the pattern of a login.
func (p *headerParser) loginHost(at string, pattern name.Pattern, login *Login) {
	switch {
	case pattern.IsWildcard():
		p.Add(at, "is a wildcard; a login is for one host, as the connection itself does not say which of them it is for")
	case pattern.Port() == 0:
		port := ":5432"
		if login.SSH != nil {
			port = ":22"
		} else if login.Proxy != nil {
			port = ":3128"
		}
		p.Add(at, "has no port; a login is for one, as in %s", name.Quote(pattern.Name().String()+port))
	case login.Proxy == nil && (isWeb(pattern.Port()) || pattern.Port() == portDoT):
		p.Add(at, "has a port of HTTP or DNS, where nothing else is spoken")
	}
	if login.SSH != nil {
		p.sshHost(at, pattern, login.SSH)
	}
}

// postgres reads a login to PostgreSQL.
func (p *headerParser) postgres(at string, v document.Value) *Postgres {
	out := &Postgres{Password: name.NewSecret("")}
	text := func(to *string) func(string, document.Value) {
		return func(at string, v document.Value) { *to = p.identifier(at, v) }
	}
	v.Fields(at, "an object of user, database and password", &p.Problems, map[string]func(string, document.Value){
		"user":     text(&out.User),
		"database": text(&out.Database),
		"password": func(at string, v document.Value) {
			text := p.Value(at, "password", v, false)
			if text.Source == "" && text.Literal.Reveal() == "" {
				p.Add(at, "is empty")
			}
			out.Password, out.Source = text.Literal, text.Source
		},
		"auth": func(at string, v document.Value) {
			host, ok := v.AsString(at, &p.Problems), false
			if out.Auth, ok = ParsePostgresAuth(host); !ok && v.Kind == document.Text {
				p.Add(at, `is %s; use "scram-sha-256", "password" or "md5"`, name.Quote(host))
			}
		},
	})
	for _, key := range []string{"user", "database", "password"} {
		if v.Kind == document.Object && !v.Has(key) {
			p.Add(document.Pointer(at, key), "is missing")
		}
	}
	return out
}

// proxy reads a login to an upstream proxy. What SOCKS (RFC 1929) and basic authentication (RFC 7617) cannot carry is
// refused.
func (p *headerParser) proxy(at string, v document.Value) *ProxyLogin {
	out := &ProxyLogin{Password: name.NewSecret("")}
	v.Fields(at, "an object of username and password", &p.Problems, map[string]func(string, document.Value){
		"scheme": func(at string, v document.Value) {
			out.Scheme = ProxyScheme(v.AsString(at, &p.Problems))
			if _, known := defaultProxyPorts[out.Scheme]; !known && v.Kind == document.Text {
				p.Add(at, `is %s; use "https", "http" or "socks5"`, name.Quote(v.Text))
			}
		},
		"username": func(at string, v document.Value) {
			out.User = v.AsString(at, &p.Problems)
			if err := CheckProxyUser(out.User); err != nil && v.Kind == document.Text {
				p.Add(at, "%s", err)
			}
		},
		"password": func(at string, v document.Value) {
			text := p.Value(at, "password", v, false)
			out.Password, out.Source = text.Literal, text.Source
			if err := CheckProxyPassword(out.Password); err != nil && out.Source == "" {
				p.Add(at, "%s", err)
			}
		},
	})
	for _, key := range []string{"username", "password"} {
		if v.Kind == document.Object && !v.Has(key) {
			p.Add(document.Pointer(at, key), "is missing")
		}
	}
	return out
}

// maxProxyText is what a login of SOCKS holds of a user name, and of a password.
const maxProxyText = 255

// CheckProxyUser checks the name of a user at a proxy, which basic authentication ends with a colon. The error completes a
// sentence about it.
func CheckProxyUser(user string) error {
	if user == "" || len(user) > maxProxyText || !utf8.ValidString(user) || strings.ContainsFunc(user, unicode.IsControl) || strings.Contains(user, ":") {
		return flawError("is empty, longer than 255 bytes, or has a colon or a control character")
	}
	return nil
}

// CheckProxyPassword checks the password of a user at a proxy. The error completes a sentence about it, and shows nothing of it.
func CheckProxyPassword(password name.Secret) error {
	if text := password.Reveal(); text == "" || len(text) > maxProxyText || strings.ContainsFunc(text, unicode.IsControl) {
		return flawError("is empty, longer than 255 bytes, or has a control character")
	}
	return nil
}

// maxIdentifier is larger than what PostgreSQL keeps of a name, which is 63 bytes unless it was compiled otherwise.
const maxIdentifier = 256

// identifier reads the name of a user or database.
func (p *headerParser) identifier(at string, v document.Value) string {
	name := v.AsString(at, &p.Problems)
	switch {
	case v.Kind != document.Text:
	case name == "" || len(name) > maxIdentifier:
		p.Add(at, "is empty or longer than %d bytes", maxIdentifier)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		p.Add(at, "has a control character")
	}
	return name
}
