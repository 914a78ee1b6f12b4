package http2

import (
	"net/http"
	"strconv"

	"golang.org/x/net/http2/hpack"

	"boxgate/policy/match"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/relay/h1"
	"boxgate/rule/placeholder"
)

// begin takes the head of the request.
func (st *stream) begin() {
	h := &st.client.Head
	st.fields, st.target, st.length = h.Fields, h.Path, h.Length
	if st.target == "" { // CONNECT
		st.target = h.Authority
	}
	for i := range st.fields {
		if f := &st.fields[i]; f.Name == "expect" && h1.Lists([]byte(f.Value), "100-continue") {
			st.expects = true
		}
	}
}

// message returns the judge's input. An expectation is handled by the gateway from here on.
func (st *stream) message() exchange.Message {
	h := &st.client.Head
	scheme := "https"
	if h.Scheme != "https" {
		scheme = "http"
	}
	return exchange.Message{
		Method: h.Method, Authority: h.Authority, Scheme: scheme, Path: st.target, Websocket: st.isWebSocket(),
		Tokens: placeholder.InHTTP2Request(st.fields, st.target, h.Method, h.Authority, h.Protocol), Head: st,
	}
}

// Forwarded implements [exchange.Head].
func (st *stream) Forwarded(needs *match.Needs) []match.Field {
	return header.WantedHTTP2(st.fields, needs)
}

func (st *stream) isWebSocket() bool {
	return st.client.Method == http.MethodConnect && st.client.Protocol == "websocket"
}

// headSize returns the approximate length of the request's head in HTTP/1.1.
func (st *stream) headSize() int {
	h := &st.client.Head
	return len(h.Method) + len(st.target) + len(h.Authority) + 32 + len(h.Protocol) + header.SizeHTTP2(st.fields)
}

// wellFormed validates the request by the rules of the HTTP/1.1 parser, so that it means the same on every path.
func (st *stream) wellFormed() bool {
	h := &st.client.Head
	if !h1.ValidMethod(h.Method) || !h1.ValidTarget(st.target) || !st.fieldsWellFormed() {
		return false
	}
	if st.target == "*" && h.Method != http.MethodOptions {
		return false
	}
	return h.Protocol == "" || h.Method == http.MethodConnect // RFC 8441, 4
}

// lines returns the number of fields that the request has in HTTP/1.1, where cookies are one (RFC 9113, 8.2.3).
func (st *stream) lines() int {
	lines, cookies := 0, 0
	for i := range st.fields {
		if st.fields[i].Name == "cookie" {
			cookies = 1
		} else {
			lines++
		}
	}
	return lines + cookies
}

// fieldsWellFormed validates the fields, except for their number.
func (st *stream) fieldsWellFormed() bool {
	lengths := 0
	for i := range st.fields {
		f := &st.fields[i]
		if !h1.ValidField(f.Name, f.Value) {
			return false
		}
		if f.Name == "content-length" { // RFC 9113, 8.1.1: it must match the body
			if lengths++; lengths > 1 || f.Value != strconv.FormatInt(st.client.Length, 10) {
				return false
			}
		}
	}
	return true
}

// requestFields returns the head of the request for an upstream that speaks HTTP/2: the path byte for byte, the box's
// fields without any variant of a header that is set, then the headers that are set.
func (st *stream) requestFields() []hpack.HeaderField {
	h, set := &st.client.Head, st.decision.Set
	authority, target := st.sentTo()
	out := append(st.sent[:0],
		hpack.HeaderField{Name: ":method", Value: h.Method}, hpack.HeaderField{Name: ":scheme", Value: "https"},
		hpack.HeaderField{Name: ":authority", Value: authority}, hpack.HeaderField{Name: ":path", Value: target})
	out = header.PassRequest(out, st.fields, set, st.length != 0)
	if n := st.length; n > 0 || n == 0 && expectsLength(h.Method) {
		out = append(out, hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(n, 10)})
	}
	if st.expects {
		out = append(out, hpack.HeaderField{Name: "expect", Value: "100-continue"})
	}
	for i := range set {
		if set[i].Remove {
			continue
		}
		out = append(out, hpack.HeaderField{Name: set[i].Name, Value: set[i].Value.Reveal(), Sensitive: true})
	}
	st.sent = out
	return out
}

// sentTo returns the authority and the target of the forwarded request.
func (st *stream) sentTo() (authority, target string) {
	if via := st.decision.Via; via != nil {
		return via.Authority, via.Target
	}
	return st.client.Authority, st.target
}

// expectsLength reports whether servers expect a length in a request without content (RFC 9110, 8.6).
func expectsLength(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
}

// Read reads the body of the request. The first read sends 100 to a client that waits for it.
func (st *stream) Read(p []byte) (int, error) {
	if st.expects && st.asked.CompareAndSwap(false, true) {
		st.client.Continue() // unless it is answered
	}
	return st.client.Read(p)
}
