package ingress

import (
	"time"

	"golang.org/x/net/http2"

	"boxgate/internal/h1"
	"boxgate/relay"
)

// This file handles logins of connections (NTLM, Negotiate) at applications: later requests on the connection are the visitor's without
// any credential. So once a message has a part of a login, the visitor's connection and the one to the box are bound: neither carries
// requests of others, and when one ends, the other is closed.

// tied takes the bound connection for a request.
func (e *exchange) tied() (*upstream, error) {
	u := e.own
	e.own = nil
	if u.key != e.visit.target.incarnation() || !u.quiet() {
		u.close()
		return nil, relay.ErrUnbound
	}
	u.used = true
	return u, nil
}

// untie closes the bound connection, unless a request has it.
func (e *exchange) untie() {
	if e.own != nil {
		e.own.close()
		e.own = nil
	}
}

// awaitBound is await while a connection to the box is bound: the end of either ends the other. It has the place of a request, of
// which each needs one connection to a box, and ends both connections if there is none.
func (c *client) awaitBound(end time.Time) error {
	box, who := c.own.key.box, c.visitor
	if !c.g.acquirePlaceAt(box, who.network, who.inside) {
		return relay.ErrUnbound
	}
	defer c.g.leavePlaceAt(box, who.network, who.inside)
	return c.AwaitBound(end, c.own.quiet)
}

// leavesLogin resets a request over HTTP/2 that is part of the login of a connection: those are left to HTTP/1.1
// (RFC 9113, 7), over which the visitor gets its own connection to the box.
func (s *stream) leavesLogin() bool {
	if !h1.LogsIn(s.Req.Fields) {
		return false
	}
	s.visit.event.Error = "a login of the connection takes HTTP/1.1, as the client was told"
	s.In.Reset(http2.ErrCodeHTTP11Required)
	return true
}
