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
	"accesskey", "apikey", "assertion", "authkey", "authorization", "clientsecret", "cookie", "credential", "dpop", "jwt", "oidc", "passphrase", "passwd",
	"password", "privatekey", "saml", "secret", "session", "signature", "token", "xauth",
}

// endings are ends of names that credentials have, such as Ocp-Apim-Subscription-Key, and harmless are names that end so but are none.
var (
	endings  = []string{"key", "auth"}
	harmless = []string{"cachekey", "idempotencykey", "partitionkey", "publickey", "secwebsocketkey", "sortkey", "surrogatekey", "xcachekey"}
)

// whole are names of credentials that are parts of other names as well.
var whole = []string{"code", "otp", "pass", "pwd", "sid", "sig", "ticket"}

var separators = strings.NewReplacer("-", "", "_", "", ".", "", "[", "", "]", "")

// isCredential reports whether a field or parameter of that name is a credential.
func isCredential(name string) bool {
	plain := separators.Replace(strings.ToLower(name))
	return slices.Contains(whole, plain) || slices.ContainsFunc(telling, func(part string) bool { return strings.Contains(plain, part) }) ||
		!slices.Contains(harmless, plain) && slices.ContainsFunc(endings, func(end string) bool { return strings.HasSuffix(plain, end) })
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
	case "sec-websocket-protocol":
		return r.protocols(value)
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
	if scheme, rest, found := strings.Cut(value, "//"); found && (scheme == "" || strings.HasSuffix(scheme, ":")) {
		authority := rest[:len(rest)-len(strings.TrimLeftFunc(rest, func(c rune) bool { return !strings.ContainsRune("/\\?", c) }))]
		if at := strings.LastIndexByte(authority, '@'); at >= 0 {
			value = scheme + "//" + url.QueryEscape(Redacted) + rest[at:]
		}
	}
	if value, _ = r.path(value); fragment {
		value += "#" + Redacted
	}
	return value
}

// longProtocol is the length of the longest subprotocol that is shown, in bytes: names are shorter than tokens.
const longProtocol = 32

// protocols returns the list of subprotocols of a WebSocket. Browsers can set no other field, so that clients also put credentials
// there: as a name, as in openai-insecure-api-key.TOKEN, or after one.
func (r redaction) protocols(value string) string {
	if r.credentials {
		return value
	}
	list := strings.Split(value, ",")
	told := false // the preceding names tell of a credential
	for i, p := range list {
		name := strings.TrimSpace(p)
		secret := told || len(name) > longProtocol || isCredential(name)
		told = told || isCredential(name) || strings.Contains(strings.ToLower(name), "bearer")
		if secret && !slices.ContainsFunc(r.shown, func(token string) bool { return strings.HasSuffix(name, token) }) {
			list[i] = strings.Replace(p, name, Redacted, 1)
		}
	}
	return strings.Join(list, ",")
}

func unescape(text string) string {
	if plain, err := url.QueryUnescape(text); err == nil {
		return plain
	}
	return text
}
