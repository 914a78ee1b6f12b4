package policy

import (
	"boxgate/policy/name"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// loginKeys are the keys of entries for servers that do not speak HTTP.
var loginKeys = []string{"postgres", "ssh", "proxy"}

// isLogin reports whether an entry is that of a server that does not speak HTTP. A header that is set to a text is none,
// whatever its name.
func isLogin(entry value) bool {
	return entry.kind == kindObject && slices.ContainsFunc(loginKeys, entry.has) && !isCompact(entry)
}

// login reads such an entry.
func (p *headerParser) login(at string, entry value) *Login {
	login := &Login{}
	if len(entry.keys) > 1 {
		p.add(at, "has a login, which stands alone: nothing else can be done with a protocol other than HTTP")
	}
	for i, key := range entry.keys {
		switch key {
		case "postgres":
			login.Postgres = p.postgres(pointer(at, key), entry.items[i])
		case "ssh":
			login.SSH = p.ssh(pointer(at, key), entry.items[i])
		case "proxy":
			login.Proxy = p.proxy(pointer(at, key), entry.items[i])
		}
	}
	return login
}

// loginHost says what is wrong with the pattern of a login.
func (p *headerParser) loginHost(at string, pattern name.Pattern, login *Login) {
	switch {
	case pattern.IsWildcard():
		p.add(at, "is a wildcard; a login is for one host, as the connection itself does not say which of them it is for")
	case pattern.Port() == 0:
		port := ":5432"
		if login.SSH != nil {
			port = ":22"
		} else if login.Proxy != nil {
			port = ":3128"
		}
		p.add(at, "has no port; a login is for one, as in %s", name.Quote(pattern.Name().String()+port))
	case login.Proxy == nil && (isWeb(pattern.Port()) || pattern.Port() == portDoT):
		p.add(at, "has a port of HTTP or DNS, where nothing else is spoken")
	}
	if login.SSH != nil {
		p.sshHost(at, pattern, login.SSH)
	}
}

// postgres reads a login to PostgreSQL.
func (p *headerParser) postgres(at string, v value) *Postgres {
	out := &Postgres{Password: name.NewSecret("")}
	text := func(to *string) func(string, value) {
		return func(at string, v value) { *to = p.identifier(at, v) }
	}
	v.fields(at, "an object of user, database and password", &p.problems, map[string]func(string, value){
		"user":     text(&out.User),
		"database": text(&out.Database),
		"password": func(at string, v value) {
			text := p.value(at, "password", v, false)
			if text.source == "" && text.literal.Reveal() == "" {
				p.add(at, "is empty")
			}
			out.Password, out.Source = text.literal, text.source
		},
		"auth": func(at string, v value) {
			host, ok := v.string(at, &p.problems), false
			if out.Auth, ok = ParsePostgresAuth(host); !ok && v.kind == kindText {
				p.add(at, `is %s; use "scram-sha-256", "password" or "md5"`, name.Quote(host))
			}
		},
	})
	for _, key := range []string{"user", "database", "password"} {
		if v.kind == kindObject && !v.has(key) {
			p.add(pointer(at, key), "is missing")
		}
	}
	return out
}

// proxy reads a login to an upstream proxy. What SOCKS (RFC 1929) and basic authentication (RFC 7617) cannot carry is
// refused.
func (p *headerParser) proxy(at string, v value) *ProxyLogin {
	out := &ProxyLogin{Password: name.NewSecret("")}
	v.fields(at, "an object of username and password", &p.problems, map[string]func(string, value){
		"scheme": func(at string, v value) {
			out.Scheme = ProxyScheme(v.string(at, &p.problems))
			if _, known := defaultProxyPorts[out.Scheme]; !known && v.kind == kindText {
				p.add(at, `is %s; use "https", "http" or "socks5"`, name.Quote(v.text))
			}
		},
		"username": func(at string, v value) {
			if out.User = v.string(at, &p.problems); v.kind == kindText {
				checkProxyUser(at, out.User, &p.problems)
			}
		},
		"password": func(at string, v value) {
			text := p.value(at, "password", v, false)
			if out.Password, out.Source = text.literal, text.source; out.Source == "" {
				checkProxyPassword(at, out.Password, &p.problems)
			}
		},
	})
	for _, key := range []string{"username", "password"} {
		if v.kind == kindObject && !v.has(key) {
			p.add(pointer(at, key), "is missing")
		}
	}
	return out
}

// maxProxyText is what a login of SOCKS holds of a user name, and of a password.
const maxProxyText = 255

// checkProxyUser checks a user name, which basic authentication ends with a colon.
func checkProxyUser(at, user string, ps *problems) {
	if err := CheckProxyUser(user); err != nil {
		ps.add(at, "%s", err)
	}
}

// CheckProxyUser checks the name of a user at a proxy. The error completes a sentence about it.
func CheckProxyUser(user string) error {
	if user == "" || len(user) > maxProxyText || !utf8.ValidString(user) || strings.ContainsFunc(user, unicode.IsControl) || strings.Contains(user, ":") {
		return flawError("is empty, longer than 255 bytes, or has a colon or a control character")
	}
	return nil
}

// checkProxyPassword checks a literal password.
func checkProxyPassword(at string, password name.Secret, ps *problems) {
	if text := password.Reveal(); text == "" || len(text) > maxProxyText || strings.ContainsFunc(text, unicode.IsControl) {
		ps.add(at, "is empty, longer than %d bytes, or has a control character", maxProxyText)
	}
}

// maxIdentifier is larger than what PostgreSQL keeps of a name, which is 63 bytes unless it was compiled otherwise.
const maxIdentifier = 256

// identifier reads the name of a user or database.
func (p *headerParser) identifier(at string, v value) string {
	name := v.string(at, &p.problems)
	switch {
	case v.kind != kindText:
	case name == "" || len(name) > maxIdentifier:
		p.add(at, "is empty or longer than %d bytes", maxIdentifier)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		p.add(at, "has a control character")
	}
	return name
}
