// Package header selects the fields of a message that are forwarded or set by the proxy, and serializes HTTP/1.1
// heads and chunks. The same rules apply to all HTTP versions.
package header

import (
	"bytes"
	"strings"

	"golang.org/x/net/http2/hpack"

	"boxgate/policy/match"
	"boxgate/proxy/scrub"
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/rule"
)

// IsSet reports whether the gateway sets the header itself, so that the box's field of that name must be dropped.
func IsSet[S []byte | string](name S, set []rule.Field) bool {
	for i := range set {
		if h1.IsVariant(name, set[i].Name) {
			return true
		}
	}
	return false
}

// listsSet reports whether a list of field names, as in Trailer, contains one the gateway sets.
func listsSet(list []byte, set []rule.Field) bool {
	for name := range bytes.SplitSeq(list, []byte(",")) {
		if IsSet(bytes.TrimSpace(name), set) {
			return true
		}
	}
	return false
}

// offersHTTP3 reports whether an Alt-Svc value (RFC 7838) would make the client switch to QUIC, past the proxy.
func offersHTTP3[S []byte | string](value S) bool {
	v := strings.ToLower(string(value))
	for entry := range strings.SplitSeq(v, ",") {
		id, _, _ := strings.Cut(strings.TrimSpace(entry), "=")
		if strings.HasPrefix(id, "h3") || strings.HasPrefix(id, "quic") || strings.HasPrefix(id, "hq") || strings.Contains(id, "%") {
			return true
		}
	}
	return false
}

// passes reports whether a field neither frames the message nor belongs to one hop.
func passes(f *h1.Field, named func([]byte) bool) bool {
	return (f.Kind == h1.Other || f.Kind == h1.AltSvc) && !named(f.Name)
}

// AppendRequest appends the head of r for the upstream: origin-form target, one Host, the box's fields without
// hop-by-hop ones and without any variant of a header in set, then set. upgrade keeps an upgrade to WebSocket.
func AppendRequest(dst []byte, r *h1.Request, set []rule.Field, upgrade bool) []byte {
	return relay.AppendRequest(dst, r, upgrade, headerSetter(set))
}

// headerSetter is the list of headers that the gateway sets in a request.
type headerSetter []rule.Field

// AppendField implements [relay.RequestFields].
func (s headerSetter) AppendField(dst []byte, f *h1.Field) []byte {
	if IsSet(f.Name, s) {
		return dst
	}
	return h1.AppendField(dst, f)
}

// Announces implements [relay.RequestFields].
func (s headerSetter) Announces(list []byte) bool { return !listsSet(list, s) }

// AppendOwn implements [relay.RequestFields].
func (s headerSetter) AppendOwn(dst []byte) []byte {
	for i := range s {
		if !s[i].Remove {
			dst = h1.AppendPair(dst, s[i].Name, s[i].Value.Reveal())
		}
	}
	return dst
}

// Readdress changes the authority and target of a request.
func Readdress(r *h1.Request, authority, target string) {
	r.Path, r.Host = []byte(target), []byte(authority)
	for i := range r.Fields {
		if r.Fields[i].Kind == h1.Host {
			r.Fields[i].Value = r.Host
		}
	}
}

// PassesResponse reports whether a response field, other than those for framing and the connection, is sent to the client.
func PassesResponse(f *h1.Field) bool { return f.Kind != h1.AltSvc || !offersHTTP3(f.Value) }

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

// Wanted returns the forwarded fields of a request that rules need.
func Wanted(r *h1.Request, needs *match.Needs) (out []match.Field) {
	for i := range r.Fields {
		f := &r.Fields[i]
		if name := string(f.Name); passes(f, r.Named) && needs.Wants(name) {
			out = append(out, match.Field{Name: name, Value: string(f.Value)})
		}
	}
	return out
}

// WantedHTTP2 is [Wanted] for HTTP/2. Cookies count as one field, as they are in HTTP/1.1 (RFC 9113, 8.2.3).
func WantedHTTP2(fields []hpack.HeaderField, needs *match.Needs) (out []match.Field) {
	for _, f := range joinCookies(fields) {
		if strings.HasPrefix(f.Name, ":") || !needs.Wants(f.Name) {
			continue
		}
		if field := h1.NewField(f.Name, f.Value); passes(&field, func([]byte) bool { return false }) {
			out = append(out, match.Field{Name: f.Name, Value: f.Value})
		}
	}
	return out
}

// AppendLastChunk appends the last chunk with the trailers. It drops fields that frame or route or that repeat a
// header in set.
func AppendLastChunk(dst []byte, trailers []h1.Field, set []rule.Field) []byte {
	return h1.AppendLastChunk(dst, trailers, func(name []byte) bool { return IsSet(name, set) })
}

// SizeFactor is the size of a parsed head in memory, as a multiple of its length.
const SizeFactor = 3
