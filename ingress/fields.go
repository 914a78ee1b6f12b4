package ingress

import (
	"bytes"
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
	case credentialOf(f.Name) || claimed(f.Name) && !lets(e.g.ForwardFields, f.Name):
	case e.visit.event.Credential == audit.CredentialLink && changesMethod(f.Name):
	case h1.EqualFold(f.Name, "authorization") && (!e.visit.keepsAuthorization() || e.visit.target.Auth.accepts(string(f.Value))):
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
	return appendForwarded(dst, e.visitor.peer, string(e.Req.Host), e.visitor.secure)
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
