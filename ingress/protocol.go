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
	"boxgate/internal/h1"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/relay"
)

// Protocol is what an application in a box speaks to the gateway.
type Protocol uint8

// The protocols.
const (
	// Auto is HTTP/1.1, and HTTP/2 without TLS for gRPC if the application is found to speak it.
	Auto Protocol = iota
	HTTP1
	// H2C is HTTP/2 without TLS. WebSockets are opened by an upgrade over HTTP/1.1 all the same.
	H2C
	// TCP is anything: visitors speak TLS to the gateway, and what is inside is passed on byte by byte.
	TCP
)

var protocols = [...]string{"auto", "http1", "h2c", "tcp"}

// String returns the name of a protocol as users write it.
func (p Protocol) String() string { return protocols[p] }

// ParseProtocol returns the protocol of a name; "" is auto.
func ParseProtocol(name string) (Protocol, bool) {
	i := slices.Index(protocols[:], cmp.Or(name, "auto"))
	return Protocol(max(i, 0)), i >= 0
}

// http2Streams is how many requests are sent over HTTP/2 at a time. Each may hold [h2c.Window] bytes of a response.
const http2Streams = 2048

// errFull refuses a request since responses may use no more memory.
var errFull = errors.New("too much of responses is waiting to be read")

// prefersHTTP2 reports whether a request is sent over HTTP/2 if the application speaks that.
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

// isGRPC reports whether a request is one of gRPC, which needs HTTP/2. What gRPC-Web sends needs none.
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

// overHTTP2 returns a connection for the request to an application that speaks HTTP/2, or nil if HTTP/1.1 is to be used. The
// place of the request is counted for the box: it may have any number of public URLs.
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

// passReset has the visitor's request end as the application's did, if that was reset (RFC 9113, 5.4.2) and the visitor's can
// be: clients of gRPC tell by the code what has happened.
func (e *exchange) passReset(err error) bool {
	code, ok := h2c.ResetCode(err)
	if !ok || !e.client.reset(code) {
		return false
	}
	v := &e.visit.event
	v.Error, v.Verdict, v.Reason, v.Action = err.Error(), policy.Deny, name.ReasonURLUnavailable, audit.ActionRefuse
	return true
}
