package header

import (
	"golang.org/x/net/http2/hpack"

	"boxgate/proxy/scrub"
	"boxgate/relay/h1"
)

// narrowed returns the value of a request field to send if the response will be scrubbed, or false to drop it.
func narrowed(name, value string) (v string, keep bool) {
	switch {
	case h1.IsVariant(name, "Accept-Encoding"):
		return scrub.AcceptEncoding(value), true
	case h1.IsVariant(name, "Range"), h1.IsVariant(name, "If-Range"), // parts of a secret would not be found
		h1.IsVariant(name, "A-IM"), h1.IsVariant(name, "Available-Dictionary"), // deltas could not be scrubbed
		h1.IsVariant(name, "Sec-WebSocket-Extensions"),
		h1.IsVariant(name, "Grpc-Accept-Encoding"), h1.IsVariant(name, "Connect-Accept-Encoding"):
		return "", false
	}
	return value, true
}

// NarrowFields removes fields from a request that could cause a response that cannot be scrubbed.
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

// NarrowHTTP2 is [NarrowFields] for HTTP/2: it narrows fields in place.
func NarrowHTTP2(fields []hpack.HeaderField) []hpack.HeaderField {
	kept := fields[:0]
	for _, f := range fields {
		v, keep := narrowed(f.Name, f.Value)
		if f.Value = v; keep {
			kept = append(kept, f)
		}
	}
	return kept
}
