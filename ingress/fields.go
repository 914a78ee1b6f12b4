package ingress

import (
	"bytes"
	"strings"

	"boxgate/ingress/pages"
	"boxgate/ingress/signin"
	"boxgate/internal/h1"
)

// forwarding says how a request is forwarded.
type forwarding struct {
	client  string // address of the client
	secure  bool   // it speaks TLS
	open    bool   // Authorization belongs to the box, but for the credentials of the URL
	auth    Auth   // of the URL
	link    bool   // a signed link let the request in
	upgrade bool   // to WebSocket

	forward []string // fields that are forwarded although they say who the client is, in lower case
}

// appendRequest appends the head of a request for the box: the target and the Host as they were sent, the client's fields
// without those of one hop, those that only the gateway may set and its own credentials, then who the client is.
func appendRequest(dst []byte, r *h1.Request, how *forwarding) []byte {
	dst = append(append(dst, r.Method...), ' ')
	dst = append(append(dst, r.Target...), " HTTP/1.1\r\n"...)
	connection := ""
	for i := range r.Fields {
		f := &r.Fields[i]
		switch f.Kind {
		case h1.Host, h1.ContentLength:
			dst = h1.AppendField(dst, f)
		case h1.Expect:
			if r.Minor > 0 && !r.Body.Empty() {
				dst = h1.AppendField(dst, f)
			}
		case h1.TE:
			if connection == "" && !how.upgrade && h1.Lists(f.Value, "trailers") {
				connection = "Connection: TE\r\n"
				dst = append(dst, "TE: trailers\r\n"...)
			}
		case h1.Other, h1.AltSvc:
			dst = appendField(dst, r, f, how)
		}
	}
	if r.Body.Chunked {
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	if how.upgrade {
		connection = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
	}
	dst = append(dst, connection...)
	return append(appendForwarded(dst, how.client, string(r.Host), how.secure), "\r\n"...)
}

// appendField appends a field of the client unless the box must not have it.
func appendField(dst []byte, r *h1.Request, f *h1.Field, how *forwarding) []byte {
	switch {
	case r.Named(f.Name) || credentialOf(f.Name) || claimed(f.Name) && !how.forwards(f.Name):
	case how.link && changesMethod(f.Name):
	case h1.EqualFold(f.Name, "authorization") && (!how.open || how.auth.accepts(string(f.Value))):
	case h1.EqualFold(f.Name, "cookie"):
		if kept := withoutOwnCookies(string(f.Value)); kept != "" {
			dst = h1.AppendPair(dst, "Cookie", kept)
		}
	case h1.EqualFold(f.Name, "referer") && bytes.Contains(f.Value, []byte(pages.Reserved)): // a page of a sign-in
	case h1.EqualFold(f.Name, "referer"):
		dst = h1.AppendField(dst, &h1.Field{Name: f.Name, Value: withoutOwnParameters(f.Value)})
	default:
		dst = h1.AppendField(dst, f)
	}
	return dst
}

// withoutOwnParameters removes the gateway's parameters from the query of a target or a URL.
func withoutOwnParameters(target []byte) []byte {
	if !signin.HasOwn(target) {
		return target
	}
	return []byte(signin.Clean(string(target)))
}

// appendForwarded tells the box the client's address, taken from the connection, in all the fields that servers read. The
// client's own such fields are dropped, and it cannot drop these by naming them in Connection.
func appendForwarded(dst []byte, client, host string, secure bool) []byte {
	proto := "http"
	if secure {
		proto = "https"
	}
	dst = h1.AppendPair(dst, "X-Forwarded-For", client)
	dst = h1.AppendPair(dst, "X-Forwarded-Host", host)
	dst = h1.AppendPair(dst, "X-Forwarded-Proto", proto)
	dst = h1.AppendPair(dst, "X-Real-Ip", client)
	dst = append(dst, "Forwarded: "...)
	dst = appendForwardedValue(dst, client, host, proto)
	return append(dst, "\r\n"...)
}

// appendForwardedValue appends a value of Forwarded (RFC 7239).
func appendForwardedValue(dst []byte, client, host, proto string) []byte {
	dst = append(dst, "for="...)
	if strings.IndexByte(client, ':') >= 0 {
		dst = append(append(append(dst, `"[`...), client...), `]"`...) // RFC 7239, 6
	} else {
		dst = append(dst, client...)
	}
	dst = append(dst, `;host="`...)
	for i := range len(host) {
		if host[i] != '\\' && host[i] != '"' {
			dst = append(dst, host[i])
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

// framed is how a response is sent to the client.
type framed struct {
	minor   uint8 // of the client's version of HTTP/1
	close   bool  // the connection closes after it
	chunked bool  // the body is written in chunks
	upgrade bool  // 101
	hsts    string
}

// clearsName is a field at which browsers delete cookies of the whole domain that the URLs share, whichever of them sends it.
const clearsName = "clear-site-data"

// shown returns the value of a field of a box's response for the client: none of one hop, no Alt-Svc, no Clear-Site-Data,
// nothing about the transport, which is the gateway's, and cookies that stay on the URL's own host.
func shown(r *h1.Response, f *h1.Field, chunked bool) (value []byte, ok bool) {
	switch {
	case f.Kind == h1.ContentLength && r.Status >= 200 && r.Status != 204, f.Kind == h1.Trailer && chunked:
	case f.Kind != h1.Other || r.Named(f.Name) || h1.EqualFold(f.Name, hstsName) || h1.EqualFold(f.Name, clearsName):
		return nil, false
	case h1.EqualFold(f.Name, "set-cookie"):
		cookie := string(f.Value)
		ok := ownHost(&cookie)
		return []byte(cookie), ok
	}
	return f.Value, true
}

// appendResponse appends the head of a response for a client of HTTP/1.x.
func appendResponse(dst []byte, r *h1.Response, a framed) []byte {
	dst = h1.AppendStatus(dst, r.Status, r.Reason)
	for i := range r.Fields {
		f := &r.Fields[i]
		if value, ok := shown(r, f, a.chunked); ok {
			dst = h1.AppendField(dst, &h1.Field{Name: f.Name, Value: value})
		}
	}
	if a.hsts != "" {
		dst = h1.AppendPair(dst, "Strict-Transport-Security", a.hsts)
	}
	switch {
	case a.upgrade:
		dst = append(dst, "Connection: Upgrade\r\nUpgrade: websocket\r\n"...)
	case r.Status < 200:
	case a.close:
		dst = append(dst, "Connection: close\r\n"...)
	case a.minor == 0:
		dst = append(dst, "Connection: keep-alive\r\n"...)
	}
	if a.chunked {
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	return append(dst, "\r\n"...)
}

// withheld reports whether a trailer field of a box is kept from the client. In a head these are rewritten or dropped;
// nobody needs them in a trailer.
func withheld(name []byte) bool {
	return h1.EqualFold(name, "set-cookie") || h1.EqualFold(name, "alt-svc") || h1.EqualFold(name, hstsName) || h1.EqualFold(name, clearsName)
}

// ownHost reports whether a box may set a cookie, from which it removes the Domain attribute: with it a box could set
// cookies for the URLs of all others.
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
