package proxy

import (
	"bytes"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"boxgate/policy"
	"boxgate/proxy/h1"
)

// This file says which fields pass through the proxy and which it sets. HTTP/1.1 and HTTP/2 share its rules.

// isVariant reports whether an origin server might take name for the header called want: equal but for the case of
// letters and for "_" in place of "-".
func isVariant[S []byte | string](name S, want string) bool {
	if len(name) != len(want) {
		return false
	}
	for i := range len(want) {
		if plain(name[i]) != plain(want[i]) {
			return false
		}
	}
	return true
}

func plain(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	case c == '_':
		return '-'
	}
	return c
}

// isSet reports whether the gateway sets the header itself, so that what the box sent under its name must go.
func isSet[S []byte | string](name S, set []policy.Header) bool {
	for i := range set {
		if isVariant(name, set[i].Name) {
			return true
		}
	}
	return false
}

// listsSet reports whether a list of field names, that of Trailer, holds one the gateway sets.
func listsSet(list []byte, set []policy.Header) bool {
	for name := range bytes.SplitSeq(list, []byte(",")) {
		if isSet(bytes.TrimSpace(name), set) {
			return true
		}
	}
	return false
}

// headerNames lists what was set or changed, for the decision log.
func headerNames(set []policy.Header, swaps []swap) []string {
	if len(set)+len(swaps) == 0 {
		return nil
	}
	names := make([]string, 0, len(set)+len(swaps))
	for i := range set {
		names = append(names, set[i].Name)
	}
	for i := range swaps {
		if name := textproto.CanonicalMIMEHeaderKey(swaps[i].header); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// offersHTTP3 reports whether an Alt-Svc value (RFC 7838) would lead the client to QUIC, past the proxy.
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

// passes reports whether a field goes on unchanged. Fields that frame the message or belong to one hop are written anew
// or left out by whoever calls.
func passes(f *h1.Field, named func([]byte) bool) bool {
	return (f.Kind == h1.Other || f.Kind == h1.AltSvc) && !named(f.Name)
}

// appendRequest writes the head of r for the upstream: origin-form target, one Host, the box's fields without those of
// its own hop and without every variant of a header in set, and set last. upgrade keeps an upgrade to WebSocket.
func appendRequest(dst []byte, r *h1.Request, set []policy.Header, upgrade bool) []byte {
	dst = append(dst, r.Method...)
	dst = append(dst, ' ')
	dst = append(dst, r.Path...)
	dst = append(dst, " HTTP/1.1\r\n"...)
	if r.Hostless {
		dst = append(append(append(dst, "Host: "...), r.Host...), "\r\n"...)
	}
	connection := ""
	for i := range r.Fields {
		f := &r.Fields[i]
		switch f.Kind {
		case h1.Host, h1.ContentLength:
			dst = appendField(dst, f)
		case h1.Expect:
			if r.Minor > 0 && !r.Body.Empty() {
				dst = appendField(dst, f)
			}
		case h1.Trailer:
			if r.Body.Chunked && !listsSet(f.Value, set) {
				dst = appendField(dst, f)
			}
		case h1.TE:
			if connection == "" && h1.Lists(f.Value, "trailers") {
				connection = "TE"
				dst = append(dst, "TE: trailers\r\n"...)
			}
		default:
			if passes(f, r.Named) && !isSet(f.Name, set) {
				dst = appendField(dst, f)
			}
		}
	}
	if r.Body.Chunked {
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	if upgrade {
		dst = append(dst, "Connection: Upgrade\r\nUpgrade: websocket\r\n"...)
	} else if connection != "" {
		dst = append(dst, "Connection: TE\r\n"...)
	}
	for i := range set {
		dst = appendPair(dst, set[i].Name, set[i].Value.Reveal())
	}
	return append(dst, "\r\n"...)
}

// answer says how a response goes to an HTTP/1.x client.
type answer struct {
	close   bool // the connection ends with it
	chunked bool // the body is written in chunks
	minor   uint8
	upgrade bool // 101
}

// appendResponse writes the head of r for the client.
func appendResponse(dst []byte, r *h1.Response, a answer) []byte {
	dst = appendStatus(dst, r.Status, r.Reason)
	bodiless := r.Status < 200 || r.Status == 204
	for i := range r.Fields {
		f := &r.Fields[i]
		switch f.Kind {
		case h1.ContentLength:
			if !bodiless {
				dst = appendField(dst, f)
			}
		case h1.Trailer:
			if a.chunked {
				dst = appendField(dst, f)
			}
		case h1.AltSvc:
			if passes(f, r.Named) && !offersHTTP3(f.Value) {
				dst = appendField(dst, f)
			}
		default:
			if passes(f, r.Named) {
				dst = appendField(dst, f)
			}
		}
	}
	switch {
	case a.upgrade:
		dst = append(dst, "Connection: Upgrade\r\nUpgrade: websocket\r\n"...)
	case r.Status < 200:
	case a.close:
		dst = append(dst, "Connection: close\r\n"...)
	case a.minor == 0:
		dst = append(dst, "Connection: keep-alive\r\n"...)
	}
	if a.chunked {
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	return append(dst, "\r\n"...)
}

func appendStatus(dst []byte, status int, reason []byte) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(status), 10)
	dst = append(dst, ' ')
	dst = append(dst, reason...)
	return append(dst, "\r\n"...)
}

func appendField(dst []byte, f *h1.Field) []byte {
	dst = append(dst, f.Name...)
	dst = append(dst, ": "...)
	dst = append(dst, f.Value...)
	return append(dst, "\r\n"...)
}

func appendPair(dst []byte, name, value string) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

// appendChunk writes one chunk around content.
func appendChunk(dst, content []byte) []byte {
	if len(content) == 0 {
		return dst // an empty chunk would end the body
	}
	dst = strconv.AppendUint(dst, uint64(len(content)), 16)
	dst = append(dst, "\r\n"...)
	dst = append(dst, content...)
	return append(dst, "\r\n"...)
}

// appendLastChunk ends a chunked body. Trailer fields that frame or route, and those that repeat a header in set, are
// left out.
func appendLastChunk(dst []byte, trailers []h1.Field, set []policy.Header) []byte {
	dst = append(dst, "0\r\n"...)
	for i := range trailers {
		if f := &trailers[i]; !f.Forbidden() && !isSet(f.Name, set) {
			dst = appendField(dst, f)
		}
	}
	return append(dst, "\r\n"...)
}
