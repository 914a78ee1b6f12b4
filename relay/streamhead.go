package relay

import (
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h1"
	"boxgate/relay/h2/downstream"
)

// AppendStreamHead appends the head of a request over HTTP/2 in the form of HTTP/1.1, so that the same parser judges requests of both
// versions. An extended CONNECT becomes the handshake of a WebSocket. An error is an [h1.Error].
func AppendStreamHead(dst []byte, h *downstream.Head) ([]byte, error) {
	verb, target := h.Method, h.Path
	switch {
	case h.Protocol != "" && !strings.EqualFold(h.Protocol, "websocket"):
		return dst, &h1.Error{Status: http.StatusNotImplemented, What: "a CONNECT to something other than a WebSocket"}
	case h.Protocol != "":
		verb = http.MethodGet
	case h.Method == http.MethodConnect:
		target = h.Authority
	case !h1.ValidTarget(target):
		return dst, &h1.Error{Status: http.StatusBadRequest, What: ":path is neither a path nor an asterisk"}
	}
	if !h1.ValidMethod(verb) {
		return dst, &h1.Error{Status: http.StatusBadRequest, What: "the method is not a token"}
	}
	dst = append(append(append(append(dst, verb...), ' '), target...), " HTTP/1.1\r\n"...)
	dst = h1.AppendPair(dst, "Host", h.Authority)
	dst = appendFields(dst, h)
	switch {
	case h.Protocol != "":
		dst = appendHandshake(dst, h.Fields)
	case h.Length < 0:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	return append(dst, "\r\n"...), nil
}

// appendFields appends the fields of a request. Those that only HTTP/1.1 has cannot be among them: downstream resets streams
// that have any.
func appendFields(dst []byte, h *downstream.Head) []byte {
	crumbs := 0
	for i := range h.Fields {
		switch f := &h.Fields[i]; f.Name {
		case "host": // is the authority
		case "cookie":
			crumbs++
		case "sec-websocket-key":
			if h.Protocol == "" {
				dst = appendField(dst, f)
			}
		default:
			dst = appendField(dst, f)
		}
	}
	if crumbs == 0 {
		return dst
	}
	dst = append(dst, "Cookie: "...) // in one line (RFC 9113, 8.2.3)
	for i := range h.Fields {
		if f := &h.Fields[i]; f.Name == "cookie" {
			dst = append(dst, f.Value...)
			if crumbs--; crumbs > 0 {
				dst = append(dst, "; "...)
			}
		}
	}
	return append(dst, "\r\n"...)
}

// appendField appends a field with the usual capitals in its name, as some programs compare names with case.
func appendField(dst []byte, f *hpack.HeaderField) []byte {
	at := len(dst)
	dst = h1.AppendPair(dst, f.Name, f.Value)
	first := true
	for i := at; i < at+len(f.Name); i++ {
		if c := dst[i]; first && 'a' <= c && c <= 'z' {
			dst[i] = c - 'a' + 'A'
		}
		first = dst[i] == '-'
	}
	return dst
}

// appendHandshake appends the fields that the handshake of a WebSocket has over HTTP/1.1 (RFC 6455, 4.1) and lacks over HTTP/2.
func appendHandshake(dst []byte, fields []hpack.HeaderField) []byte {
	key := make([]byte, 16)
	_, _ = rand.Read(key) // never fails
	if !slices.ContainsFunc(fields, func(f hpack.HeaderField) bool { return f.Name == "sec-websocket-version" }) {
		dst = h1.AppendPair(dst, "Sec-Websocket-Version", "13")
	}
	dst = h1.AppendPair(dst, "Connection", "Upgrade")
	dst = h1.AppendPair(dst, "Upgrade", "websocket")
	return h1.AppendPair(dst, "Sec-Websocket-Key", base64.StdEncoding.EncodeToString(key))
}
