package proxy

import (
	"crypto/tls"
	"time"

	"boxgate/internal/memory"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/exchange"
	"boxgate/proxy/http1"
	"boxgate/proxy/http2"
	"boxgate/proxy/peek"
	"boxgate/proxy/route"
)

// intercept terminates TLS and hands the connection over to the message loop of the negotiated protocol.
func (c *conn) intercept(f peek.First, rt route.Routed) {
	if !c.usage.Intercept(c.p.cfg.MaxInterceptions) {
		c.refuse(peek.Other, policy.ReasonLimit) // reset: the policy denies nothing here
		return
	}
	c.intercepted = true
	client, err := c.p.terminate(c.box, newReplay(c, f.Data), rt.Request.Name, nil)
	if err != nil {
		c.event.Error = err.Error()
		c.refuse(peek.Other, policy.ReasonClientTLS)
		return
	}
	name := rt.Request.Name
	c.handOver(func() { c.converse(client, name) })
}

// converse runs the message loop on an intercepted connection.
func (c *conn) converse(client *tls.Conn, name policy.Name) {
	serve := http1.Serve
	if client.ConnectionState().NegotiatedProtocol == "h2" {
		if !c.usage.Memory.Acquire(memory.HTTP2, http2.ConnCost) {
			c.refuse(peek.Other, policy.ReasonLimit)
			return
		}
		defer c.usage.Memory.Release(memory.HTTP2, http2.ConnCost)
		serve = http2.Serve
	}
	c.open()
	s := c.p.core.NewSession(c.box, c.usage, c.live, client)
	s.Name, s.Orig, s.Port, s.Secure = name, c.orig, c.port, true
	c.finish(s, serve(c.ctx, s))
}

// finish closes a connection gracefully after its message loop: the last response must arrive.
func (c *conn) finish(s *exchange.Session, err error) {
	if c.live.Denied() != nil {
		return
	}
	if err != nil {
		c.event.Error = err.Error()
	}
	_ = c.tcp.SetWriteDeadline(time.Now().Add(socket.LingerTime))
	if t, ok := s.Client.(*tls.Conn); ok {
		_ = t.CloseWrite() // a disconnected client needs no close_notify
	}
	c.last = true
}
