package proxy

import (
	"net/http"
	"strings"

	"boxgate/proxy/h1"
	"boxgate/proxy/scrub"
)

// This file takes out of a request what would lead to a response that cannot be looked into.

// narrowed returns what goes on of a field whose response will be scrubbed.
func narrowed(name, value string) (v string, keep bool) {
	switch {
	case isVariant(name, "Accept-Encoding"):
		return scrub.AcceptEncoding(value), true
	case isVariant(name, "Range"), isVariant(name, "If-Range"), // parts of a secret are not found
		isVariant(name, "A-IM"), isVariant(name, "Available-Dictionary"), // nor differences to something else
		isVariant(name, "Sec-WebSocket-Extensions"),
		isVariant(name, "Grpc-Accept-Encoding"), isVariant(name, "Connect-Accept-Encoding"):
		return "", false
	}
	return value, true
}

// narrowFields does so for HTTP/1.x.
func narrowFields(r *h1.Request) {
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

// narrowHeader does so for HTTP/2.
func narrowHeader(h http.Header) {
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
