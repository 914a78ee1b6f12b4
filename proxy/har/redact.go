package har

import (
	"net/url"
	"slices"
	"strings"
)

// Redacted replaces credentials of the box; SetByGateway and RemovedByGateway are the values of headers that rules set and remove.
const (
	Redacted         = "[redacted]"
	SetByGateway     = "[set by the gateway]"
	RemovedByGateway = "[removed by the gateway]"
)

// telling are parts of names that credentials have, as header fields or query parameters. Names are compared in lower case, without
// dashes and underscores.
var telling = []string{
	"accesskey", "apikey", "assertion", "authkey", "authorization", "clientsecret", "cookie", "credential", "jwt", "passphrase", "passwd", "password",
	"privatekey", "secret", "session", "signature", "token", "xauth",
}

// whole are names of credentials that are parts of other names as well.
var whole = []string{"auth", "code", "key", "pass", "pwd", "sid", "sig"}

var separators = strings.NewReplacer("-", "", "_", "", ".", "", "[", "", "]", "")

// isCredential reports whether a field or parameter of that name is a credential.
func isCredential(name string) bool {
	plain := separators.Replace(strings.ToLower(name))
	return slices.Contains(whole, plain) || slices.ContainsFunc(telling, func(part string) bool { return strings.Contains(plain, part) })
}

// schemes are schemes of Authorization that are shown.
var schemes = []string{"aws4-hmac-sha256", "basic", "bearer", "digest", "dpop", "negotiate", "ntlm", "token"}

// redaction shows or redacts the credentials of one exchange.
type redaction struct {
	credentials bool
	shown       []string // placeholders, which are no secrets
}

// field returns the value of a header field to show.
func (r redaction) field(name, value string) string {
	switch strings.ToLower(name) {
	case "location", "content-location", "referer":
		return r.reference(value)
	}
	if r.credentials || !isCredential(name) || slices.Contains(r.shown, value) {
		return value
	}
	scheme, rest, found := strings.Cut(value, " ")
	switch {
	case !found || !slices.Contains(schemes, strings.ToLower(scheme)):
		return Redacted
	case slices.Contains(r.shown, rest):
		return value
	}
	return scheme + " " + Redacted
}

// parameter is field for a query parameter.
func (r redaction) parameter(name, value string) string {
	if r.credentials || !isCredential(name) || slices.Contains(r.shown, value) {
		return value
	}
	return Redacted
}

// path returns a path with its query, and the parameters of the query.
func (r redaction) path(path string) (shown string, query []pair) {
	query = []pair{}
	path, raw, found := strings.Cut(path, "?")
	if !found {
		return path, query
	}
	parts := strings.Split(raw, "&")
	for i, part := range parts {
		name, value, valued := strings.Cut(part, "=")
		p := pair{Name: unescape(name), Value: unescape(value)}
		if v := r.parameter(p.Name, p.Value); v != p.Value && valued {
			p.Value, parts[i] = v, name+"="+url.QueryEscape(v)
		}
		if part != "" {
			query = append(query, p)
		}
	}
	return path + "?" + strings.Join(parts, "&"), query
}

// reference returns the value of a field that is a URL. Its fragment may have credentials of any name (RFC 6749, 4.2.2).
func (r redaction) reference(value string) string {
	if r.credentials {
		return value
	}
	value, _, fragment := strings.Cut(value, "#")
	if value, _ = r.path(value); fragment {
		value += "#" + Redacted
	}
	return value
}

func unescape(text string) string {
	if plain, err := url.QueryUnescape(text); err == nil {
		return plain
	}
	return text
}
