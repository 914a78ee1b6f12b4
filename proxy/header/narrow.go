package header

import (
	"net/http"
	"strings"

	"boxgate/internal/h1"
	"boxgate/proxy/scrub"
)

// narrowed returns what is left of a field if the response will be scrubbed.
func narrowed(name, value string) (v string, keep bool) {
	switch {
	case h1.IsVariant(name, "Accept-Encoding"):
		return scrub.AcceptEncoding(value), true
	case h1.IsVariant(name, "Range"), h1.IsVariant(name, "If-Range"), // parts of a secret would not be found
		h1.IsVariant(name, "A-IM"), h1.IsVariant(name, "Available-Dictionary"), // nor would deltas
		h1.IsVariant(name, "Sec-WebSocket-Extensions"),
		h1.IsVariant(name, "Grpc-Accept-Encoding"), h1.IsVariant(name, "Connect-Accept-Encoding"):
		return "", false
	}
	return value, true
}

// NarrowFields removes from a request what could cause a response that cannot be scrubbed.
func NarrowFields(r *h1.Request) {
	kept := r.Fields[:0]
	for _, f := range r.Fields {
		if f.Kind == h1.Other {
			v, keep := narrowed(string(f.Name), string(f.Value))
			if !keep {
				continue
			}
			f.Value = []byte(v)
		}
		kept = append(kept, f)
	}
	r.Fields = kept
}

// Narrow is [NarrowFields] for HTTP/2.
func Narrow(h http.Header) {
	for name, values := range h {
		if strings.HasPrefix(name, ":") {
			continue
		}
		for i, v := range values {
			narrow, keep := narrowed(name, v)
			if !keep {
				delete(h, name)
				break
			}
			values[i] = narrow
		}
	}
}
