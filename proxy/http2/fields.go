package http2

import (
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"

	"boxgate/proxy/header"
)

// requestFields returns the head of the request for an upstream that speaks HTTP/2: the path byte for byte, the box's
// fields without any variant of a header that is set, then the headers that are set.
func (st *stream) requestFields(source *uploadSource) []hpack.HeaderField {
	set := st.ruling.Set
	out := make([]hpack.HeaderField, 0, len(st.r.Header)+len(set)+8)
	out = append(out,
		hpack.HeaderField{Name: ":method", Value: st.r.Method}, hpack.HeaderField{Name: ":scheme", Value: "https"},
		hpack.HeaderField{Name: ":authority", Value: st.r.Host}, hpack.HeaderField{Name: ":path", Value: st.r.RequestURI})
	for name, values := range st.r.Header {
		if !header.IsSet(name, set) {
			out = appendField(out, name, values)
		}
	}
	if n := st.r.ContentLength; n > 0 || n == 0 && expectsLength(st.r.Method) {
		out = append(out, hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(n, 10)})
	}
	if source != nil && len(source.trailer) > 0 {
		out = append(out, hpack.HeaderField{Name: "trailer", Value: strings.Join(source.trailer, ",")})
	}
	if st.expects {
		out = append(out, hpack.HeaderField{Name: "expect", Value: "100-continue"})
	}
	for i := range set {
		out = append(out, hpack.HeaderField{Name: lower(set[i].Name), Value: set[i].Value.Reveal(), Sensitive: true})
	}
	return out
}

// appendField appends a field of the box's request, unless it belongs to its connection or is one that the gateway writes
// itself.
func appendField(out []hpack.HeaderField, name string, values []string) []hpack.HeaderField {
	switch name {
	case "Host", "Content-Length", "Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade", "Trailer", "Http2-Settings":
		return out
	case "User-Agent":
		if len(values) > 0 && values[0] == "" { // none
			return out
		}
	case "Cookie":
		return appendCookies(out, values)
	}
	if strings.HasPrefix(name, ":") || strings.HasPrefix(name, "Proxy-") {
		return out
	}
	name = lower(name)
	for _, v := range values {
		out = append(out, hpack.HeaderField{Name: name, Value: v})
	}
	return out
}

// appendCookies appends each cookie as a field of its own (RFC 9113, 8.2.3): servers limit the length of a field.
func appendCookies(out []hpack.HeaderField, values []string) []hpack.HeaderField {
	for _, v := range values {
		for crumb := range strings.SplitSeq(v, ";") {
			if crumb = strings.TrimLeft(crumb, " "); crumb != "" {
				out = append(out, hpack.HeaderField{Name: "cookie", Value: crumb})
			}
		}
	}
	return out
}

// expectsLength reports whether servers expect a length of a request without content (RFC 9110, 8.6).
func expectsLength(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
}

// lower returns the name of a field as HTTP/2 has it.
func lower(name string) string {
	if l, ok := lowered[name]; ok {
		return l
	}
	return strings.ToLower(name)
}

// lowered has the names of common request fields.
var lowered = func() map[string]string {
	names := map[string]string{}
	for _, l := range []string{
		"accept", "accept-encoding", "accept-language", "authorization", "cache-control", "content-encoding", "content-type", "cookie",
		"grpc-accept-encoding", "grpc-encoding", "grpc-timeout", "if-modified-since", "if-none-match", "origin", "pragma", "priority",
		"range", "referer", "sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "te", "user-agent", "x-api-key", "x-request-id",
	} {
		names[http.CanonicalHeaderKey(l)] = l
	}
	return names
}()
