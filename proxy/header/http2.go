package header

import (
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"

	"boxgate/internal/h1"
	"boxgate/rule"
)

// PassResponse removes from the fields of a response, in place, those of the upstream hop. interim says that it is a 1xx
// response, which has no content to announce.
func PassResponse(fields []hpack.HeaderField, interim bool) []hpack.HeaderField {
	kept, measured := fields[:0], interim
	for _, f := range fields {
		switch f.Name {
		case "connection", "keep-alive", "transfer-encoding", "te", "upgrade":
			continue
		case "trailer":
			if f.Value = passTrailerNames(f.Value, nil); interim || f.Value == "" {
				continue
			}
		case "alt-svc":
			if offersHTTP3(f.Value) {
				continue
			}
		case "content-length":
			if measured { // several are equal
				continue
			}
			measured = true
		}
		if !strings.HasPrefix(f.Name, "proxy-") {
			kept = append(kept, f)
		}
	}
	return kept
}

// PassRequest appends the fields of a request for an upstream that speaks HTTP/2: those of the box, without what belongs
// to its connection, what the gateway writes itself, and any variant of a header in set. body says that content follows,
// after which there may be trailers.
func PassRequest(dst, fields []hpack.HeaderField, set []rule.Field, body bool) []hpack.HeaderField {
	for _, f := range fields {
		switch f.Name {
		case "host", "content-length", "connection", "keep-alive", "transfer-encoding", "upgrade", "http2-settings", "expect":
			continue
		case "trailer":
			if f.Value = passTrailerNames(f.Value, set); !body || f.Value == "" {
				continue
			}
		case "user-agent":
			if f.Value == "" { // none
				continue
			}
		case "cookie":
			dst = appendCookies(dst, f, set)
			continue
		}
		if !strings.HasPrefix(f.Name, "proxy-") && !IsSet(f.Name, set) {
			dst = append(dst, f)
		}
	}
	return dst
}

// appendCookies appends each cookie as a field of its own (RFC 9113, 8.2.3): servers limit the length of a field.
func appendCookies(dst []hpack.HeaderField, f hpack.HeaderField, set []rule.Field) []hpack.HeaderField {
	if IsSet(f.Name, set) {
		return dst
	}
	for crumb := range strings.SplitSeq(f.Value, ";") {
		if f.Value = strings.TrimLeft(crumb, " "); f.Value != "" {
			dst = append(dst, f)
		}
	}
	return dst
}

// passTrailerNames returns a list of field names, as in Trailer, without those that [PassTrailers] drops.
func passTrailerNames(list string, set []rule.Field) string {
	kept := make([]string, 0, 4)
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if h1.ValidField(name, "") && passesTrailer(strings.ToLower(name), set) {
			kept = append(kept, name)
		}
	}
	return strings.Join(kept, ",")
}

// PassTrailers returns trailer fields without those that frame, route or control the connection (RFC 9110, 6.5.1) and any
// variant of a header in set.
func PassTrailers(fields []hpack.HeaderField, set []rule.Field) []hpack.HeaderField {
	unfit := func(f hpack.HeaderField) bool { return !passesTrailer(f.Name, set) || !h1.ValidField(f.Name, f.Value) }
	if slices.ContainsFunc(fields, unfit) {
		return slices.DeleteFunc(slices.Clone(fields), unfit) // another attempt asks again
	}
	return fields
}

// passesTrailer judges a name in lower case.
func passesTrailer(name string, set []rule.Field) bool {
	switch name {
	case "authorization", "cache-control", "connection", "content-encoding", "content-length", "content-range", "content-type",
		"expect", "host", "http2-settings", "keep-alive", "max-forwards", "pragma", "range", "realm", "te", "trailer",
		"transfer-encoding", "upgrade", "www-authenticate":
		return false
	}
	return !strings.HasPrefix(name, "if-") && !strings.HasPrefix(name, "proxy-") && !IsSet(name, set)
}

// HTTP2Request is the head of an HTTP/2 request that goes to an upstream that speaks HTTP/1.1.
type HTTP2Request struct {
	Method, Path, Authority string
	Fields                  []hpack.HeaderField
	Length                  int64 // of the content; -1 if it is not known
	Expects                 bool  // the client waits for a 100
	Upgrade                 bool  // an extended CONNECT to be sent as an upgrade to WebSocket (RFC 8441)
}

// HTTP1 converts the head for [AppendRequest]: one Host, one Cookie, the framing for its length, the trailers that it
// announces.
func (r *HTTP2Request) HTTP1() (out h1.Request) {
	out.Method, out.Path, out.Host, out.Hostless, out.Minor = []byte(r.Method), []byte(r.Path), []byte(r.Authority), true, 1
	out.Fields = make([]h1.Field, 0, len(r.Fields)+2)
	measured := false
	for _, f := range joinCookies(r.Fields) {
		switch field := h1.NewField(textproto.CanonicalMIMEHeaderKey(f.Name), f.Value); field.Kind {
		case h1.ContentLength:
			measured = true
		case h1.Trailer:
			if names := passTrailerNames(f.Value, nil); names != "" && !r.Upgrade {
				out.Fields = append(out.Fields, h1.NewField("Trailer", names))
			}
		case h1.Other, h1.TE:
			out.Fields = append(out.Fields, field)
		}
	}
	if r.Upgrade {
		out.Method = []byte("GET")
		return out
	}
	out.Body = h1.Framing{Chunked: r.Length < 0, Length: max(0, r.Length)}
	if r.Length > 0 || r.Length == 0 && measured {
		out.Fields = append(out.Fields, h1.NewField("Content-Length", strconv.FormatInt(r.Length, 10)))
	}
	if r.Expects {
		out.Fields = append(out.Fields, h1.NewField("Expect", "100-continue"))
	}
	return out
}

// joinCookies returns fields with one for all cookies (RFC 9113, 8.2.3).
func joinCookies(fields []hpack.HeaderField) []hpack.HeaderField {
	var crumbs []string
	for i := range fields {
		if fields[i].Name == "cookie" {
			crumbs = append(crumbs, fields[i].Value)
		}
	}
	if len(crumbs) < 2 {
		return fields
	}
	joined := make([]hpack.HeaderField, 0, len(fields))
	for _, f := range fields {
		if f.Name != "cookie" {
			joined = append(joined, f)
			continue
		}
		if crumbs != nil {
			f.Value = strings.Join(crumbs, "; ")
			joined, crumbs = append(joined, f), nil
		}
	}
	return joined
}

// SizeHTTP2 returns about how long fields are when written as HTTP/1.1.
func SizeHTTP2(fields []hpack.HeaderField) (n int) {
	for i := range fields {
		n += len(fields[i].Name) + len(fields[i].Value) + 4
	}
	return n
}
