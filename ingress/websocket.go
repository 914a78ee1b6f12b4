package ingress

import (
	"net"
	"sync/atomic"
	"time"

	"boxgate/internal/socket"
	"boxgate/relay"
)

// Tunnel implements [relay.Side]. It forwards the 101 and then relays bytes both ways until both directions have ended, or one
// has and the other stays silent. n is the length of the response's head.
func (c *client) Tunnel(n int) error {
	c.answered = true
	c.begun.Store(true)
	c.visit.event.Status = c.Res.Status
	c.Out.Buf = relay.AppendResponse(c.Out.Take(), &c.Res, relay.Answer{Minor: 1, Upgrade: true}, c)
	c.up.in.Take(n)
	err := c.Flush()
	c.Out.Give()
	if err == nil {
		err = c.pump()
	}
	switch {
	case c.wasCut():
		c.visit.event.Error = errCut.Error()
	case err != nil:
		c.visit.event.Error = err.Error()
	default:
		return errEnd
	}
	return errAbort
}

func (c *client) pump() error {
	c.g.releaseBox(&c.visit)
	var received, sent atomic.Int64
	t := c.g.tunnel(&c.visit, c.Conn, c.up.conn, &received, &sent)
	t.Client.In, t.Server.In, t.Kill = &c.In, &c.up.in, socket.Abort
	t.Half = func() func() bool { return time.AfterFunc(relay.Rest, t.Abort).Stop }
	err := t.Run(c.ctx)
	c.visit.event.BytesIn, c.visit.event.BytesOut = received.Load(), sent.Load()
	return err
}

// tunnel returns a tunnel between a visitor and a box. The caller sets the readers, Kill and Half.
func (g *core) tunnel(v *visit, visitor, box net.Conn, received, sent *atomic.Int64) *relay.Tunnel {
	return &relay.Tunnel{
		Client:   relay.End{Conn: visitor, To: visitor, Read: received, Moved: func() { g.moved(v, true) }},
		Server:   relay.End{Conn: box, To: box, Read: sent, Moved: func() { g.moved(v, false) }},
		Panicked: func(any) { g.panickedIn(v.target.Box) },
	}
}
