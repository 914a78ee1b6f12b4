package header

import (
	"net/http"
	"strconv"
	"strings"

	"boxgate/internal/h1"
	"boxgate/policy"
)

// AppendRequest appends the head of r for the upstream: origin-form target, one Host, the box's fields without
// hop-by-hop ones and without any variant of a header in set, then set. upgrade keeps an upgrade to WebSocket.
func AppendRequest(dst []byte, r *h1.Request, set []policy.Header, upgrade bool) []byte {
	dst = append(dst, r.Method...)
	dst = append(dst, ' ')
	dst = append(dst, r.Path...)
	dst = append(dst, " HTTP/1.1\r\n"...)
	if r.Hostless {
		dst = append(append(append(dst, "Host: "...), r.Host...), "\r\n"...)
	}
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
		case h1.Trailer:
			if r.Body.Chunked && !listsSet(f.Value, set) {
				dst = h1.AppendField(dst, f)
			}
		case h1.TE:
			if connection == "" && !upgrade && h1.Lists(f.Value, "trailers") {
				connection = "TE"
				dst = append(dst, "TE: trailers\r\n"...)
			}
		default:
			if passes(f, r.Named) && !IsSet(f.Name, set) {
				dst = h1.AppendField(dst, f)
			}
		}
	}
	if r.Body.Chunked {
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	if upgrade {
		dst = append(dst, "Connection: Upgrade\r\nUpgrade: websocket\r\n"...)
	} else if connection != "" {
		dst = append(dst, "Connection: TE\r\n"...)
	}
	for i := range set {
		dst = h1.AppendPair(dst, set[i].Name, set[i].Value.Reveal())
	}
	return append(dst, "\r\n"...)
}

// FromHTTP2 converts the head of an HTTP/2 request to HTTP/1.1, for [AppendRequest]: one Host, the framing for its
// length, the trailers it announces. expects says that the client waits for a 100; upgrade says that the request is an
// extended CONNECT to be forwarded as an upgrade to WebSocket (RFC 8441).
func FromHTTP2(r *http.Request, expects, upgrade bool) (out h1.Request) {
	out.Method, out.Path, out.Host, out.Hostless, out.Minor = []byte(r.Method), []byte(r.RequestURI), []byte(r.Host), true, 1
	out.Fields = make([]h1.Field, 0, len(r.Header)+len(r.Trailer)+2)
	for name, values := range r.Header {
		if strings.HasPrefix(name, ":") {
			continue
		}
		for _, v := range values {
			if f := h1.NewField(name, v); f.Kind == h1.Other || f.Kind == h1.TE {
				out.Fields = append(out.Fields, f)
			}
		}
	}
	if upgrade {
		out.Method = []byte(http.MethodGet)
		return out
	}
	out.Body = h1.Framing{Chunked: r.ContentLength < 0, Length: max(0, r.ContentLength)}
	if r.ContentLength > 0 || r.ContentLength == 0 && r.Header["Content-Length"] != nil {
		out.Fields = append(out.Fields, h1.NewField("Content-Length", strconv.FormatInt(r.ContentLength, 10)))
	}
	for name := range r.Trailer {
		if h1.ValidField(name, "") {
			out.Fields = append(out.Fields, h1.NewField("Trailer", name))
		}
	}
	if expects {
		out.Fields = append(out.Fields, h1.NewField("Expect", "100-continue"))
	}
	return out
}
