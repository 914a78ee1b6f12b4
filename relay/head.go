package relay

import (
	"net/http"

	"boxgate/relay/h1"
)

// RequestFields decides about the fields of a request that neither frame it nor belong to its connection.
type RequestFields interface {
	// AppendField appends a field of the client, unchanged or rewritten, or drops it.
	AppendField(dst []byte, f *h1.Field) []byte
	// Announces reports whether a list of trailers, as in Trailer, is passed on.
	Announces(list []byte) bool
	// AppendOwn appends the gateway's own fields.
	AppendOwn(dst []byte) []byte
}

// AppendRequest appends the head of a request for a server: the path, one Host, the framing fields, and the fields that by passes.
// upgrade keeps an upgrade to WebSocket. The gateway's own fields come last: a client cannot drop them by naming them in Connection.
func AppendRequest[F RequestFields](dst []byte, r *h1.Request, upgrade bool, by F) []byte {
	dst = append(append(append(dst, r.Method...), ' '), r.Path...)
	dst = append(dst, " HTTP/1.1\r\n"...)
	if r.Hostless {
		dst = append(append(append(dst, "Host: "...), r.Host...), "\r\n"...)
	}
	connection := ""
	for i := range r.Fields {
		switch f := &r.Fields[i]; f.Kind {
		case h1.Host, h1.ContentLength:
			dst = h1.AppendField(dst, f)
		case h1.Expect:
			if r.Minor > 0 && !r.Body.Empty() {
				dst = h1.AppendField(dst, f)
			}
		case h1.Trailer:
			if r.Body.Chunked && by.Announces(f.Value) {
				dst = h1.AppendField(dst, f)
			}
		case h1.TE:
			if connection == "" && !upgrade && h1.Lists(f.Value, "trailers") {
				connection = "Connection: TE\r\n"
				dst = append(dst, "TE: trailers\r\n"...)
			}
		case h1.Other, h1.AltSvc:
			if !r.Named(f.Name) {
				dst = by.AppendField(dst, f)
			}
		}
	}
	if r.Body.Chunked {
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	if upgrade {
		connection = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
	}
	return append(by.AppendOwn(append(dst, connection...)), "\r\n"...)
}

// ResponseFields decides about the fields of a response that neither frame it nor belong to its connection.
type ResponseFields interface {
	// Passes returns the value with which a field is passed on, and whether it is.
	Passes(f *h1.Field) (value []byte, ok bool)
	// AppendExtra appends the fields that the gateway adds to a response that is not an interim one.
	AppendExtra(dst []byte) []byte
}

// Answer is how a response is sent to a client of HTTP/1.x.
type Answer struct {
	Minor   uint8 // of the client's version
	Close   bool  // the connection ends after it
	Chunked bool  // the body is written in chunks
	Upgrade bool  // 101
}

// PassesFrame reports whether a field that frames a response is passed on to a client of any version.
func PassesFrame(r *h1.Response, f *h1.Field, chunked bool) bool {
	return f.Kind == h1.ContentLength && r.Status >= 200 && r.Status != 204 || f.Kind == h1.Trailer && chunked
}

// AppendResponse appends the head of a response for a client of HTTP/1.x: the framing fields, and the fields that by passes.
func AppendResponse[F ResponseFields](dst []byte, r *h1.Response, a Answer, by F) []byte {
	dst = h1.AppendStatus(dst, r.Status, r.Reason)
	for i := range r.Fields {
		f := &r.Fields[i]
		switch {
		case PassesFrame(r, f, a.Chunked):
			dst = h1.AppendField(dst, f)
		case f.Kind != h1.Other && f.Kind != h1.AltSvc || r.Named(f.Name):
		default:
			if value, ok := by.Passes(f); ok {
				dst = h1.AppendField(dst, &h1.Field{Name: f.Name, Value: value})
			}
		}
	}
	switch {
	case r.Interim():
		return append(dst, "\r\n"...)
	case a.Upgrade:
		dst = append(dst, "Connection: Upgrade\r\nUpgrade: websocket\r\n"...)
	case a.Close:
		dst = append(dst, "Connection: close\r\n"...)
	case a.Minor == 0:
		dst = append(dst, "Connection: keep-alive\r\n"...)
	}
	if a.Chunked {
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	return append(by.AppendExtra(dst), "\r\n"...)
}

// KeepText is the length up to which a text of one request is kept for the next, which often has the same.
const KeepText = 512

// Recall returns b as a string, which is *last if that is the same and becomes *last if it is short.
func Recall(last *string, b []byte) string {
	if string(b) == *last {
		return *last
	}
	s := string(b)
	if len(s) <= KeepText {
		*last = s
	}
	return s
}

// Method returns a method as a string, without allocating for the common ones.
func Method(m []byte) string {
	switch string(m) {
	case http.MethodGet:
		return http.MethodGet
	case http.MethodPost:
		return http.MethodPost
	case http.MethodHead:
		return http.MethodHead
	case http.MethodPut:
		return http.MethodPut
	}
	return string(m)
}

// Values returns the values of a field, whose name is given in lower case, one for each of its lines.
func Values(fields []h1.Field, name string) (values []string) {
	for i := range fields {
		if f := &fields[i]; h1.EqualFold(f.Name, name) {
			values = append(values, string(f.Value))
		}
	}
	return values
}
