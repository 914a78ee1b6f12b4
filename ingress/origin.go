package ingress

import (
	"net"
	"net/http"
	"net/url"
	"strings"
)

// A browser sends the user and password that somebody once typed with every request to the URL, whichever site has it make
// the request. So a site could act on a URL in the name of its visitors: by a WebSocket, whose messages it can read, and
// by a request that changes something. Such requests are refused here. What a browser lets a foreign site read in answer
// to other requests is for the application to say (CORS).

// ambient reports whether the credential of a request that [Auth.permits] may be one that the browser added by itself. A
// bearer token was put there by a script that knows it, and where no credential is asked for none is abused.
func (a Auth) ambient(r *http.Request) bool {
	scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return !a.open() && !strings.EqualFold(scheme, "Bearer")
}

// foreign reports whether another site has a browser open a WebSocket or make a request that may change something. The
// URLs of other boxes are other sites, although they share the gateway's domain. Clients that are no browsers send
// neither of the headers that tell.
func foreign(r *http.Request) bool {
	site, known := r.Header["Sec-Fetch-Site"]
	for _, s := range site {
		if s != "same-origin" && s != "none" { // none: the user did it, by a bookmark or the address bar
			return opensWebSocket(r) || !isSafe(r.Method)
		}
	}
	switch {
	case opensWebSocket(r): // always with the true Origin
	case isSafe(r.Method), known: // Origin may be "null" here, if the page wants no referrer told
		return false
	}
	origin, known := r.Header["Origin"]
	return known && (len(origin) != 1 || !isOwnOrigin(r, origin[0]))
}

// isSafe reports whether a method changes nothing (RFC 9110, 9.2.1).
func isSafe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// opensWebSocket reports whether a request is the handshake of a WebSocket (RFC 6455; RFC 8441 over HTTP/2).
func opensWebSocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || r.Method == http.MethodConnect || r.Header.Get(":protocol") != ""
}

// isOwnOrigin reports whether an Origin is that of the URL the request is for (RFC 6454). Plain HTTP is served on loopback
// alone, where a server in front may have terminated TLS: then either scheme is its own.
func isOwnOrigin(r *http.Request, origin string) bool {
	o, err := url.Parse(origin)
	if err != nil || origin != o.Scheme+"://"+o.Host || o.Scheme != "https" && (o.Scheme != "http" || r.TLS != nil) {
		return false
	}
	return bareHost(o.Host) == bareHost(r.Host) && portOf(o.Host, o.Scheme) == portOf(r.Host, o.Scheme)
}

// portOf returns the port of a host with an optional one.
func portOf(hostport, scheme string) string {
	if _, port, err := net.SplitHostPort(hostport); err == nil && port != "" {
		return port
	}
	return map[string]string{"http": "80", "https": "443"}[scheme]
}
