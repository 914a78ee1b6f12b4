package header

import (
	"strings"

	"golang.org/x/net/http2/hpack"

	"boxgate/policy/match"
	"boxgate/relay/h1"
)

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
