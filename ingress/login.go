package ingress

import (
	"time"

	"golang.org/x/net/http2"

	"boxgate/relay"
	"boxgate/relay/h1"
)

// This file handles applications that authenticate a connection instead of each request (NTLM, Negotiate): later requests on
// the connection act for the visitor without a credential. So once a message contains part of such a login, the visitor's
// connection and the one to the box are bound: neither carries requests of others, and the end of one closes the other.

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

// untie closes the bound connection, unless a request is using it.
func (e *exchange) untie() {
	if e.own != nil {
		e.own.close()
		e.own = nil
	}
}

// awaitBound is await for a bound client: the end of either connection ends the other. While it waits it takes the place of a
// request, as places limit the connections to boxes. If all are taken, both connections end.
func (c *client) awaitBound(end time.Time) error {
	box, who := c.own.key.box, c.visitor
	if !c.g.acquirePlaceAt(box, who.network, who.inside) {
		return relay.ErrUnbound
	}
	defer c.g.leavePlaceAt(box, who.network, who.inside)
	return c.AwaitBound(end, c.own.quiet)
}

// leavesLogin resets a request over HTTP/2 that is part of a connection's login, so that the client repeats it over HTTP/1.1
// (RFC 9113, 7), where the visitor gets its own connection to the box.
func (s *stream) leavesLogin() bool {
	if !h1.LogsIn(s.Req.Fields) {
		return false
	}
	s.visit.event.Error = "a login of the connection takes HTTP/1.1, as the client was told"
	s.In.Reset(http2.ErrCodeHTTP11Required)
	return true
}
