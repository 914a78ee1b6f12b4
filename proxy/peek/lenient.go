package peek

import (
	"bytes"
	"strings"
	"unicode"

	"boxgate/policy"
)

// This file detects first bytes that may contain a host name for a lenient server, although our parsers recognize neither a
// ClientHello nor a request line. Where names decide, they are not treated as a protocol without names.

// almostNamed reports whether the first bytes are of that kind.
func (f First) almostNamed() bool {
	return (f.Kind == Other || f.Kind == Silent) && (almostHTTP(f) || almostTLS(f) || almostPROXY(f))
}

// almostHTTP reports whether first bytes that are not an HTTP/1 request line are, or may become, one to a lenient
// server. Servers skip leading empty lines (nginx, Apache, Node, Tomcat), any white space (Varnish), or any control
// byte (netty); split the line at any white space (RFC 9112, 3; Python); accept it without a version (nginx, Apache,
// Node, Tomcat: HTTP/0.9); and accept methods of any length, or the preface of HTTP/2.
func almostHTTP(f First) bool {
	line, _, whole := bytes.Cut(f.Data[leadingBlanks(f.Data):], []byte{'\n'})
	if bytes.Contains(bytes.ToUpper(line), []byte("HTTP/")) {
		return true
	}
	method := line[:methodLength(line)]
	target := bytes.TrimFunc(line[len(method):], unicode.IsSpace)
	if _, known := webMethods[string(bytes.ToUpper(method))]; known {
		return !whole || bytes.HasPrefix(target, []byte("/")) || bytes.Contains(target, []byte("://"))
	}
	return !whole && !f.Ended && mayBecomeRequest(f.Data)
}

// mayBecomeRequest reports whether data, whose complete lines are all empty, may be the beginning of a request with an
// unknown method.
func mayBecomeRequest(data []byte) bool {
	line := data
	for len(line) > 0 && (line[0] == 0 || isBlank(line[0])) {
		line = line[1:]
	}
	end := methodLength(line)
	if end == len(line) {
		return len(data) > 0
	}
	return end > 0 && isBlank(line[end]) || end > maxMethod
}

// isBlank reports whether any server takes a byte for white space: in ISO 8859-1, or in Python, which includes the
// file, group, record and unit separators.
func isBlank(b byte) bool { return unicode.IsSpace(rune(b)) || 0x1c <= b && b <= 0x1f }

// methodLength returns the length of the token at the beginning of line.
func methodLength(line []byte) int {
	end := bytes.IndexFunc(line, func(r rune) bool { return !methodRune(r) })
	if end < 0 {
		return len(line)
	}
	return end
}

// leadingBlanks returns the number of leading bytes that are white space or control characters in ASCII or ISO 8859-1.
func leadingBlanks(data []byte) int {
	for i, b := range data {
		if b > ' ' && b < 0x7f || b > 0xa0 {
			return i
		}
	}
	return len(data)
}

// beginsRequest reports whether a ClientHello is also the beginning of a request to a server without TLS that skips
// control bytes before the request line (netty): its length fields can be such bytes, and the client chooses its random
// bytes.
func beginsRequest(hello []byte) bool {
	line := hello[leadingBlanks(hello):]
	method, rest := line[:methodLength(line)], line[methodLength(line):]
	if len(method) == 0 || len(rest) == 0 || !unicode.IsSpace(rune(rest[0])) {
		return false
	}
	_, known := webMethods[string(bytes.ToUpper(method))]
	return known || bytes.Contains(bytes.ToUpper(rest), []byte(" HTTP/")) // in ALPN a length byte precedes it
}

// almostTLS reports whether first bytes are, or may become, TLS that does not begin with a regular ClientHello: one in
// SSL 2.0 format without a name, which TLS servers accept from a client (RFC 5246, E.2), or a record of another
// type, such as a warning alert, that some servers skip (BoringSSL).
func almostTLS(f First) bool {
	if len(f.Data) > 0 && recordFirst <= f.Data[0] && f.Data[0] <= recordLast {
		return len(f.Data) == 1 && !f.Ended || len(f.Data) > 1 && f.Data[1] == legacyMajor
	}
	const head = 4 // two bytes of length, the type of the message, the major version
	if len(f.Data) == 0 || f.Data[0]&0x80 == 0 {
		return false
	}
	if len(f.Data) < head {
		return !f.Ended
	}
	return f.Data[2] == clientHello && (f.Data[3] == 0 || f.Data[3] == legacyMajor)
}

// Types of TLS records (RFC 8446, B.1; RFC 6520).
const recordFirst, recordLast = 20, 24

// almostPROXY reports whether first bytes are, or may become, a PROXY protocol header, which a server that expects one
// strips from what follows, such as a request.
func almostPROXY(f First) bool {
	for _, header := range []string{"PROXY ", "\r\n\r\n\x00\r\nQUIT\n"} {
		if n := min(len(f.Data), len(header)); n > 0 && (n == len(header) || !f.Ended) && strings.HasPrefix(header, string(f.Data[:n])) {
			return true
		}
	}
	return false
}

// webMethods are the methods that web servers accept (RFC 9110, 9; RFC 5789; RFC 4918; RFC 9113, 3.4).
var webMethods = map[string]struct{}{
	"GET": {}, "HEAD": {}, "POST": {}, "PUT": {}, "DELETE": {}, "CONNECT": {}, "OPTIONS": {}, "TRACE": {}, "PATCH": {}, "PRI": {},
	"PROPFIND": {}, "PROPPATCH": {}, "MKCOL": {}, "COPY": {}, "MOVE": {}, "LOCK": {}, "UNLOCK": {}, "REPORT": {}, "SEARCH": {},
}

// Opening classifies the first bytes for the policy. HTTP/1 is not covered: its requests are routed one by one.
func (f First) Opening() policy.Opening {
	switch f.Kind {
	case TLS:
		return policy.OpeningTLS
	case Silent:
		if f.Ended {
			return policy.OpeningEnded
		}
		return policy.OpeningSilent
	case Partial:
		return policy.OpeningPartial
	case Other:
		if f.almostNamed() {
			return policy.OpeningLenient
		}
		return policy.OpeningOther
	default:
		return policy.OpeningUnreadable
	}
}
