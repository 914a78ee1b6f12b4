package ingress

import (
	"bytes"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"boxgate/audit"
	"boxgate/ingress/pages"
	"boxgate/ingress/signin"
	"boxgate/relay/h1"
)

// forwarding selects the request fields for the box ([relay.RequestFields]): the client's, except the gateway's credentials
// and the fields that only the gateway may set, and then the fields that identify the client.
type forwarding struct{ *exchange }

// AppendField implements [relay.RequestFields].
func (e forwarding) AppendField(dst []byte, f *h1.Field) []byte {
	switch {
	case e.visit.target.remote != nil:
		dst = h1.AppendField(dst, f)
	case credentialOf(f.Name) || isTokenField(e.g.TokenFields, f.Name) || claimed(f.Name) && !lets(e.g.ForwardFields, f.Name):
	case e.visit.event.Credential == audit.CredentialLink && changesMethod(f.Name):
	case h1.EqualFold(f.Name, "authorization") && (!e.visit.keepsAuthorization() || e.visit.target.Auth.knows(string(f.Value))):
	case h1.EqualFold(f.Name, "cookie"):
		if kept := withoutOwnCookies(string(f.Value)); kept != "" {
			dst = h1.AppendPair(dst, "Cookie", kept)
		}
	case h1.EqualFold(f.Name, "referer") && bytes.Contains(f.Value, []byte(pages.Reserved)): // a page of the sign-in
	case h1.EqualFold(f.Name, "referer"):
		dst = h1.AppendField(dst, &h1.Field{Name: f.Name, Value: withoutOwnParameters(f.Value)})
	default:
		dst = h1.AppendField(dst, f)
	}
	return dst
}

// Announces implements [relay.RequestFields]: trailers are dropped.
func (e forwarding) Announces([]byte) bool { return false }

// AppendOwn implements [relay.RequestFields].
func (e forwarding) AppendOwn(dst []byte) []byte {
	if e.visit.target.remote != nil {
		return dst // it gets them by the connection
	}
	return appendForwarded(dst, e.visitor.peer, e.Req.Host, e.visitor.secure)
}

// withoutOwnParameters removes the gateway's parameters from the query of a target or a URL.
func withoutOwnParameters(target []byte) []byte {
	if !signin.HasOwn(target) {
		return target
	}
	return []byte(signin.Clean(string(target)))
}

// appendForwarded appends the client's address, taken from the connection, in all fields that servers read. The client's own
// such fields are dropped, and it cannot drop these by naming them in Connection.
func appendForwarded(dst []byte, client string, host []byte, secure bool) []byte {
	proto := "http"
	if secure {
		proto = "https"
	}
	dst = h1.AppendPair(dst, "X-Forwarded-For", client)
	dst = append(append(append(dst, "X-Forwarded-Host: "...), host...), "\r\n"...)
	dst = h1.AppendPair(dst, "X-Forwarded-Proto", proto)
	dst = h1.AppendPair(dst, "X-Real-Ip", client)
	dst = append(dst, "Forwarded: "...)
	dst = appendForwardedValue(dst, client, host, proto)
	return append(dst, "\r\n"...)
}

// appendForwardedValue appends a value of Forwarded (RFC 7239).
func appendForwardedValue(dst []byte, client string, host []byte, proto string) []byte {
	dst = append(dst, "for="...)
	if strings.IndexByte(client, ':') >= 0 {
		dst = append(append(append(dst, `"[`...), client...), `]"`...) // RFC 7239, 6
	} else {
		dst = append(dst, client...)
	}
	dst = append(dst, `;host="`...)
	for _, c := range host {
		if c != '\\' && c != '"' {
			dst = append(dst, c)
		}
	}
	return append(append(dst, `";proto=`...), proto...)
}

// cookiePrefix is the prefix of all cookies of the gateway.
const cookiePrefix = "__Host-boxgate"

// withoutOwnCookies removes the gateway's cookies from a value of Cookie. A value without them is kept byte for byte.
func withoutOwnCookies(line string) string {
	if !strings.Contains(line, cookiePrefix) {
		return line
	}
	var kept []string
	for pair := range strings.SplitSeq(line, ";") {
		if name := strings.TrimSpace(pair); !strings.HasPrefix(name, cookiePrefix) {
			kept = append(kept, name)
		}
	}
	return strings.Join(kept, "; ")
}

// clearsName is a field at which browsers delete cookies of the whole domain that the URLs share, whichever URL sends it.
const clearsName = "clear-site-data"

// shown returns the client's value of a response field, and whether the client gets it. Dropped are framing and hop-by-hop
// fields, Alt-Svc, Clear-Site-Data and Strict-Transport-Security; cookies are confined to the URL's own host.
func shown(f *h1.Field) (value []byte, ok bool) {
	switch {
	case f.Kind != h1.Other || h1.EqualFold(f.Name, hstsName) || h1.EqualFold(f.Name, clearsName):
		return nil, false
	case h1.EqualFold(f.Name, "set-cookie"):
		cookie := string(f.Value)
		ok := ownHost(&cookie)
		return []byte(cookie), ok
	}
	return f.Value, true
}

// withheld reports whether a trailer field of a box is kept from the client. In a head these fields are rewritten or dropped;
// a trailer does not need them.
func withheld(name []byte) bool {
	return h1.EqualFold(name, "set-cookie") || h1.EqualFold(name, "alt-svc") || h1.EqualFold(name, hstsName) || h1.EqualFold(name, clearsName)
}

// ownHost reports whether a box may set a cookie, and removes its Domain attribute: otherwise a box could set cookies for the
// URLs of all others.
func ownHost(cookie *string) bool {
	if strings.HasPrefix(strings.TrimSpace(*cookie), cookiePrefix) {
		return false
	}
	*cookie = withoutDomain(*cookie)
	return true
}

// withoutDomain removes the Domain attribute from a cookie.
func withoutDomain(cookie string) string {
	parts := strings.Split(cookie, ";")
	kept := parts[:1]
	for _, attribute := range parts[1:] {
		name, _, _ := strings.Cut(attribute, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "Domain") {
			kept = append(kept, attribute)
		}
	}
	return strings.Join(kept, ";")
}

// claimedBeginnings are prefixes of fields in which a reverse proxy reports who the client is or what it requested. They are
// families: products and their versions add names, and applications trust them (docs/urls.md lists families and names).
// "proxy" alone is httpoxy (CVE-2016-5385).
var claimedBeginnings = []string{
	"remote-", "x-remote-", "x-forwarded", "x-real-", "x-original-", "x-auth", "x-webauth-", "x-user", "ssl-", "x-ssl-",
	"x-client-cert", "x-tls-client-", "x-envoy-", "proxy-", "x-proxy-", "tailscale-", "cf-access-", "x-goog-authenticated-", "x-goog-iap-",
	"x-appengine-", "x-amzn-oidc-", "x-amzn-mtls-", "x-ms-client-", "x-ms-token-", "x-arr-", "x-pomerium-", "x-vouch-",
	"x-consumer-", "x-sandstorm-", "x-replit-user-", "ngrok-auth-", "oidc-", "shib-",
}

// claimedNames are further such fields.
var claimedNames = []string{
	"forwarded", "proxy", "x-client-ip", "client-ip", "true-client-ip", "x-cluster-client-ip", "x-host", "x-originating-ip",
	"x-rewrite-url", "x-scheme", "x-url-scheme", "x-script-name", "script-name", "path-info", "x-proxyuser-ip", "wl-proxy-client-ip",
	"cf-connecting-ip", "cf-connecting-ipv6", "cf-pseudo-ipv4", "cf-ipcountry", "cf-visitor", "fastly-client-ip", "fastly-ssl",
	"x-azure-clientip", "x-azure-socketip", "x-nf-client-connection-ip", "fly-client-ip", "x-vercel-forwarded-for",
	"x-vercel-ip-country", "x-vercel-proxied-for", "akamai-origin-hop", "front-end-https", "x-ssl", "client-cert", "client-cert-chain",
	"x-client-verify", "x-client-dn", "x-email", "x-groups", "x-jwt-assertion", "x-rh-identity", "x-endpoint-api-userinfo",
	"x-apigateway-api-userinfo", "x-credential-identifier", "x-anonymous-consumer", "kubeflow-userid", "sm-user", "iv-user",
	"iv-groups", "iv-creds",
}

// ownNames are the fields that appendForwarded sets. No configuration lets visitors set them.
var ownNames = []string{"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "forwarded"}

// claim is a name, or a prefix of names, in lower case.
type claim struct {
	name   string
	begins bool
}

// claims indexes the claimed names by their first letter: index 1 are names that begin with "x-", without that prefix.
var claims = func() (by [2][26][]claim) {
	for i, list := range [][]string{claimedBeginnings, claimedNames} {
		for _, name := range list {
			after := 0
			if name[:2] == "x-" {
				after, name = 1, name[2:]
			}
			of := &by[after][name[0]-'a']
			*of = append(*of, claim{name: name, begins: i == 0})
		}
	}
	return by
}()

// folded maps the bytes of field names to how servers that turn fields into variables (CGI, WSGI, Rack) may read them: to
// lower case, and all other characters to one. Most servers map only "-", some also ".", lighttpd every character that is no
// letter or digit.
var folded = func() (to [256]byte) {
	for i := range to {
		switch c := byte(i); {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			to[i] = c
		case 'A' <= c && c <= 'Z':
			to[i] = c + 'a' - 'A'
		default:
			to[i] = '-'
		}
	}
	return to
}()

// isName reports whether an application may read a field as the one called want, which is in lower case.
func isName[S []byte | string](name S, want string) bool {
	if len(name) != len(want) {
		return false
	}
	for i := range len(want) {
		if folded[name[i]] != want[i] {
			return false
		}
	}
	return true
}

// claimed reports whether a field claims who the client is or what it requested. It is called for each field of each request,
// and does not allocate.
func claimed[S []byte | string](name S) bool {
	rest, after := name, 0
	if len(name) > 2 && folded[name[0]] == 'x' && folded[name[1]] == '-' {
		rest, after = name[2:], 1
	}
	if len(rest) == 0 {
		return false
	}
	letter := folded[rest[0]] - 'a'
	if letter >= 26 {
		return false
	}
	of := claims[after][letter]
	for i := range of {
		n := len(of[i].name)
		if (len(rest) == n || len(rest) > n && of[i].begins) && isName(rest[:n], of[i].name) {
			return true
		}
	}
	return false
}

// lets reports whether the operator's list of names, in lower case, lets a claimed field pass. Only the exact name counts: the
// gateway would see another spelling as a second field, and an application as the same one.
func lets(names []string, name []byte) bool {
	return slices.ContainsFunc(names, func(lower string) bool { return h1.EqualFold(name, lower) })
}

// isTokenField reports whether an application may read a field as one for tokens. names are in lower case.
func isTokenField(names []string, name []byte) bool {
	return slices.ContainsFunc(names, func(lower string) bool { return isName(name, lower) })
}

// lowered returns names in lower case, without the fields that the gateway sets itself, in any spelling.
func lowered(names []string) []string {
	var all []string
	for _, name := range names {
		if !slices.ContainsFunc(ownNames, func(own string) bool { return isName(name, own) }) {
			all = append(all, strings.ToLower(name))
		}
	}
	return all
}

// credentialOf reports whether a field is for keys of the gateway, so that a visitor sent it here by mistake.
func credentialOf[S []byte | string](name S) bool {
	return isName(name, "x-box-api-key") || isName(name, "proxy-authorization")
}

// changesMethod reports whether applications take the request's method from this field. Signed links permit only some methods.
func changesMethod[S []byte | string](name S) bool {
	return isName(name, "x-http-method-override") || isName(name, "x-http-method") || isName(name, "x-method-override")
}

// Once a user has entered a password or signed in, the browser sends the credential with every request to the URL, whichever
// site caused the request. So another site could act on a URL on behalf of its visitors: with a WebSocket, whose messages it
// can read, or with a request that changes something. This part refuses such requests. Whether other sites may read responses
// is the application's choice (CORS).

// foreign reports whether another site made a browser open a WebSocket or send a request that may change something. The URLs
// of other boxes are other sites, although they share the gateway's domain. Clients other than browsers send neither of the
// headers checked here. a lists further origins that count as the URL's own.
func foreign(q *asked, a *Access) bool {
	if listed(q, a) {
		return false
	}
	sites := q.values("sec-fetch-site")
	for _, s := range sites {
		if s != "same-origin" && s != "none" { // none: the user opened it, from a bookmark or the address bar
			return opensWebSocket(q) || !isSafe(q.method)
		}
	}
	switch {
	case opensWebSocket(q): // browsers always send the true Origin
	case isSafe(q.method), len(sites) > 0: // Origin may be "null" if the page sends no referrer
		return false
	}
	origin := q.values("origin")
	return len(origin) > 0 && (len(origin) != 1 || !isOwnOrigin(q, origin[0]))
}

// listed reports whether a request comes from a page of an origin that the URL lists.
func listed(q *asked, a *Access) bool {
	if a == nil || len(a.Origins) == 0 {
		return false
	}
	origin := q.values("origin")
	return len(origin) == 1 && a.lists(origin[0])
}

// foreignRead reports whether another origin made a browser load something other than a whole page: an image, a script, a
// frame. Browsers omit a session's cookie (SameSite) if that origin is another site, but they consider the URLs of other boxes
// the same site.
func foreignRead(q *asked, a *Access) bool {
	for _, s := range q.values("sec-fetch-site") {
		if s != "same-origin" && s != "none" {
			return !listed(q, a) && (q.first("sec-fetch-mode") != "navigate" || q.first("sec-fetch-dest") != "document")
		}
	}
	return false
}

// elsewhere reports whether another origin made a browser send a request.
func elsewhere(q *asked) bool {
	for _, s := range q.values("sec-fetch-site") {
		if s != "same-origin" && s != "none" {
			return true
		}
	}
	return false
}

// isSafe reports whether a method is safe, meaning that it changes no state (RFC 9110, 9.2.1).
func isSafe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// opensWebSocket reports whether a request is the handshake of a WebSocket (RFC 6455; RFC 8441 over HTTP/2).
func opensWebSocket(q *asked) bool {
	return strings.EqualFold(q.first("upgrade"), "websocket") || q.method == http.MethodConnect
}

// isOwnOrigin reports whether an Origin (RFC 6454) is the URL's own. Plain HTTP is only served on loopback, where a reverse
// proxy may have terminated TLS: there either scheme counts as its own.
func isOwnOrigin(q *asked, origin string) bool {
	o, err := url.Parse(origin)
	if err != nil || origin != o.Scheme+"://"+o.Host || o.Scheme != "https" && (o.Scheme != "http" || q.secure) {
		return false
	}
	return bareHost(o.Host) == bareHost(q.host) && portOf(o.Host, o.Scheme) == portOf(q.host, o.Scheme)
}

// portOf returns the port of a host, or the default port of the scheme.
func portOf(hostport, scheme string) string {
	if _, port, err := net.SplitHostPort(hostport); err == nil && port != "" {
		return port
	}
	return map[string]string{"http": "80", "https": "443"}[scheme]
}
