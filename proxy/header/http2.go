package header

import (
	"net/http"
	"strings"

	"boxgate/internal/h1"
)

// Copy copies a response's fields, without those of the upstream hop.
func Copy(dst, src http.Header) {
	for name, values := range src {
		switch name {
		case "Connection", "Keep-Alive", "Transfer-Encoding", "Te", "Upgrade", "Trailer":
			continue
		case "Alt-Svc":
			if offersHTTP3(strings.Join(values, ",")) {
				continue
			}
		}
		if strings.HasPrefix(name, "Proxy-") {
			continue
		}
		dst[name] = values
	}
	for _, name := range []string{"Date", "Content-Type", "Content-Length"} {
		if _, ok := dst[name]; !ok {
			dst[name] = nil // else the server would add its own
		}
	}
}

// CopyFields copies a response's fields for HTTP/2, without those of the upstream hop.
func CopyFields(dst http.Header, r *h1.Response) {
	src := make(http.Header, len(r.Fields))
	for i := range r.Fields {
		f := &r.Fields[i]
		if passes(f, r.Named) || (f.Kind == h1.ContentLength && r.Status >= 200 && r.Status != 204) {
			src.Add(string(f.Name), string(f.Value))
		}
	}
	Copy(dst, src)
}
