package header

import (
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h1"
	"boxgate/rule"
)

// PassResponse removes the fields of the upstream hop from a response, in place. interim is set for a 1xx response, which
// has no content to announce.
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
			if measured { // duplicates are equal
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

// PassRequest appends the fields of a request for an upstream that speaks HTTP/2: the box's fields, without those of its
// connection, those that the gateway writes itself, and any variant of a header in set. body is set if content follows, and
// with it possibly trailers.
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
			if f.Value == "" { // not sent at all
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

// appendCookies appends each cookie as a separate field (RFC 9113, 8.2.3): servers limit the length of a field.
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

// passTrailerNames returns a list of field names, as in Trailer, without the names that [PassTrailers] drops.
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

// PassTrailers returns trailer fields without fields that frame, route or control the connection (RFC 9110, 6.5.1) and any
// variant of a header in set.
func PassTrailers(fields []hpack.HeaderField, set []rule.Field) []hpack.HeaderField {
	unfit := func(f hpack.HeaderField) bool { return !passesTrailer(f.Name, set) || !h1.ValidField(f.Name, f.Value) }
	if slices.ContainsFunc(fields, unfit) {
		return slices.DeleteFunc(slices.Clone(fields), unfit) // on a copy: another attempt uses fields again
	}
	return fields
}

// passesTrailer reports whether a trailer field is forwarded. name is in lower case.
func passesTrailer(name string, set []rule.Field) bool {
	switch name {
	case "authorization", "cache-control", "connection", "content-encoding", "content-length", "content-range", "content-type",
		"expect", "host", "http2-settings", "keep-alive", "max-forwards", "pragma", "range", "realm", "te", "trailer",
		"transfer-encoding", "upgrade", "www-authenticate":
		return false
	}
	return !strings.HasPrefix(name, "if-") && !strings.HasPrefix(name, "proxy-") && !IsSet(name, set)
}

// joinCookies returns fields with all cookies joined into one (RFC 9113, 8.2.3).
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

// SizeHTTP2 returns the approximate length of fields written as HTTP/1.1.
func SizeHTTP2(fields []hpack.HeaderField) (n int) {
	for i := range fields {
		n += len(fields[i].Name) + len(fields[i].Value) + 4
	}
	return n
}
