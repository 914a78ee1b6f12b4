package ingress

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"

	"boxgate/audit"
	"boxgate/ingress/h2c"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/relay"
	"boxgate/relay/h1"
)

// Protocol is the protocol of an application in a box.
type Protocol uint8

// The protocols.
const (
	// Auto is HTTP/1.1, and HTTP/2 without TLS for gRPC if a probe shows that the application speaks it.
	Auto Protocol = iota
	HTTP1
	// H2C is HTTP/2 without TLS. WebSockets still use an upgrade over HTTP/1.1.
	H2C
	// TCP is any protocol: visitors speak TLS to the gateway, which relays the decrypted bytes.
	TCP
)

var protocols = [...]string{"auto", "http1", "h2c", "tcp"}

// String returns the name of a protocol in the configuration and the API.
func (p Protocol) String() string { return protocols[p] }

// ParseProtocol parses the name of a protocol; "" is auto.
func ParseProtocol(name string) (Protocol, bool) {
	i := slices.Index(protocols[:], cmp.Or(name, "auto"))
	return Protocol(max(i, 0)), i >= 0
}

// http2Streams is the limit of requests over HTTP/2 at a time. Each may buffer [h2c.Window] bytes of a response.
const http2Streams = 2048

// errFull refuses a request because all memory for responses is reserved.
var errFull = errors.New("too much of responses is waiting to be read")

// prefersHTTP2 reports whether a request is sent over HTTP/2 if the application speaks it.
func (e *exchange) prefersHTTP2(upgrade bool) bool {
	switch e.visit.target.Protocol {
	case H2C:
		return !upgrade
	case Auto:
		return e.Method == http.MethodPost && isGRPC(e.Req.Fields)
	default:
		return false
	}
}

// isGRPC reports whether a request is gRPC, which needs HTTP/2. gRPC-Web does not.
func isGRPC(fields []h1.Field) bool {
	for i := range fields {
		if f := &fields[i]; h1.EqualFold(f.Name, "content-type") {
			kind, _, _ := bytes.Cut(f.Value, []byte(";"))
			kind, _, _ = bytes.Cut(bytes.TrimSpace(kind), []byte("+"))
			return h1.EqualFold(kind, "application/grpc")
		}
	}
	return false
}

// overHTTP2 returns a connection for the request to an application that speaks HTTP/2, or nil if the request must use
// HTTP/1.1. The request's place is counted for the box, which may have any number of public URLs.
func (e *exchange) overHTTP2() (*upstream, error) {
	t, network := e.visit.target, e.visitor.network
	if !e.g.http2Places.acquire(string(t.Box), network) {
		return nil, errFull
	}
	leave := func() { e.g.http2Places.release(string(t.Box), network) }
	dial := func(ctx context.Context) (net.Conn, error) { return e.g.dial(ctx, t) }
	conn, err := e.g.http2.Open(e.ctx, t.incarnation(), t.Protocol == Auto, dial, e.left)
	if err != nil {
		leave()
		if errors.Is(err, h2c.ErrOther) {
			return nil, nil
		}
		return nil, err
	}
	up := newUpstream(t, conn)
	up.leave = leave
	return up, nil
}

// left returns relay.ErrClientGone if the client no longer waits.
func (e *exchange) left() error {
	if e.client.gone() {
		return relay.ErrClientGone
	}
	return nil
}

// passReset resets the visitor's request with the code of the application's reset (RFC 9113, 5.4.2), as gRPC clients interpret
// it. It reports false if there was no such reset, or if the visitor's request cannot be reset.
func (e *exchange) passReset(err error) bool {
	code, ok := h2c.ResetCode(err)
	if !ok || !e.client.reset(code) {
		return false
	}
	v := &e.visit.event
	v.Error, v.Verdict, v.Reason, v.Action = err.Error(), policy.Deny, name.ReasonURLUnavailable, audit.ActionRefuse
	return true
}
