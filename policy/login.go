package policy

import (
	"net/url"

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
