package ingress

import (
	"net"
	"net/http"
	"net/url"
	"strings"
)

// Once a user has entered a password or signed in, the browser sends the credential with every request to the URL, whichever
// site caused the request. So another site could act on a URL on behalf of its visitors: with a WebSocket, whose messages it
// can read, or with a request that changes something. This file refuses such requests. Whether other sites may read responses
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
