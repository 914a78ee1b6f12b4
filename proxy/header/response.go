package header

import (
	"boxgate/internal/h1"
)

// Answer is how a response is sent to an HTTP/1.x client.
type Answer struct {
	Close   bool // the connection closes after it
	Chunked bool // the body is written in chunks
	Minor   uint8
	Upgrade bool // 101
}

// AppendResponse appends the head of r for the client.
func AppendResponse(dst []byte, r *h1.Response, a Answer) []byte {
	dst = h1.AppendStatus(dst, r.Status, r.Reason)
	bodiless := r.Status < 200 || r.Status == 204
	for i := range r.Fields {
		f := &r.Fields[i]
		switch f.Kind {
		case h1.ContentLength:
			if !bodiless {
				dst = h1.AppendField(dst, f)
			}
		case h1.Trailer:
			if a.Chunked {
				dst = h1.AppendField(dst, f)
			}
		case h1.AltSvc:
			if passes(f, r.Named) && !offersHTTP3(f.Value) {
				dst = h1.AppendField(dst, f)
			}
		default:
			if passes(f, r.Named) {
				dst = h1.AppendField(dst, f)
			}
		}
	}
	switch {
	case a.Upgrade:
		dst = append(dst, "Connection: Upgrade\r\nUpgrade: websocket\r\n"...)
	case r.Status < 200:
	case a.Close:
		dst = append(dst, "Connection: close\r\n"...)
	case a.Minor == 0:
		dst = append(dst, "Connection: keep-alive\r\n"...)
	}
	if a.Chunked {
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	return append(dst, "\r\n"...)
}
