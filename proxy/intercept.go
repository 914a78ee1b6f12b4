package proxy

import (
	"errors"
	"time"

	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/http1"
	"boxgate/proxy/http2"
	"boxgate/proxy/peek"
	"boxgate/proxy/route"
)

// errRooted is the logged error of a TLS client whose SNI ends in a dot, so that no certificate can match it.
var errRooted = errors.New("the server name ends in a dot (RFC 6066, 3): leave it out of the URL, since requests for this host are intercepted")

// intercept terminates TLS and passes the connection to the message loop of the negotiated protocol.
func (c *conn) intercept(f peek.First, rt route.Routed) {
	if f.NamesRoot() {
		c.event.Error = errRooted.Error()
		c.refuse(f.Kind, name.ReasonProtocol)
		return
	}
	if c.interception = c.usage.Intercept(c.p.cfg.MaxInterceptions, len(f.Data)); c.interception == nil {
		c.refuse(peek.Other, name.ReasonLimit) // a reset, not an alert: the policy allowed the connection
		return
	}
	var alpn []string // the default protocols
	if c.p.core.Origins.OffersLogin(c.box.ID, rt.Request.Name, c.port) {
		alpn = loginProtocols
	}
	legacy := c.box.Policy.Load().LegacyClients(rt.Request.Name, c.port)
	client, err := c.p.terminate(c.box, newReplay(c, f.Data), len(f.Data), rt.Request.Name, alpn, legacy)
	if err != nil {
		c.event.Error = handshakeFault(err, c.live.In.Load()).Error()
		c.refuse(peek.Other, name.ReasonClientTLS)
		return
	}
	c.interception.Established(c.live.Out.Load())
	s := c.p.core.NewSession(c.box, c.usage, c.live, client)
	s.TLS = c.interception
	s.Name, s.Orig, s.Port, s.Secure = rt.Request.Name, c.orig, c.port, true
	if client.ConnectionState().NegotiatedProtocol == "h2" {
		c.handOver(func() step { c.serveHTTP2(s); return nil })
		return
	}
	c.startTraffic()
	c.serveHTTP1(s)
}

// serveHTTP1 runs the message loop of HTTP/1.x. While the connection is idle between requests, it is handed over to a new
// goroutine.
func (c *conn) serveHTTP1(s *exchange.Session) {
	if next := c.serveRequests(s, func() (http1.Rest, error) { return http1.Serve(c.ctx, s) }); next != nil {
		c.handOver(next)
	}
}

// serveRequests serves requests until the connection has ended or becomes idle. In the latter case it returns the step that
// continues.
func (c *conn) serveRequests(s *exchange.Session, serve http1.Rest) step {
	rest, err := serve()
	if rest == nil {
		c.closeGracefully(s, err)
		return nil
	}
	return func() step { return c.serveRequests(s, rest) }
}

// serveHTTP2 runs the message loop of HTTP/2.
func (c *conn) serveHTTP2(s *exchange.Session) {
	var claim memory.Claim
	claim.Open(c.usage.Memory, memory.HTTP2)
	if !claim.Grow(http2.ConnCost) {
		c.refuse(peek.Other, name.ReasonLimit)
		return
	}
	defer claim.Close()
	c.startTraffic()
	c.closeGracefully(s, http2.Serve(c.ctx, s, &claim))
}

// closeGracefully closes a connection gracefully after its message loop, so that the last response arrives.
func (c *conn) closeGracefully(s *exchange.Session, err error) {
	if c.live.Denied() != nil {
		return
	}
	if err == nil && s.Secure && !s.Asked() {
		err = errRequestless
	}
	if err != nil {
		c.event.Error = err.Error()
	}
	_ = c.tcp.SetWriteDeadline(time.Now().Add(socket.LingerTime))
	if t, ok := s.Client.(*socket.Terminated); ok {
		_ = t.CloseWrite() // the client may have disconnected
	}
	c.linger = true
}
