package header

import (
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
		if !set[i].Remove {
			dst = h1.AppendPair(dst, set[i].Name, set[i].Value.Reveal())
		}
	}
	return append(dst, "\r\n"...)
}

// Readdress has a request go to another authority and target.
func Readdress(r *h1.Request, authority, target string) {
	r.Path, r.Host = []byte(target), []byte(authority)
	for i := range r.Fields {
		if r.Fields[i].Kind == h1.Host {
			r.Fields[i].Value = r.Host
		}
	}
}
