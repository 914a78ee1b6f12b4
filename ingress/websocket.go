package ingress

import (
	"time"

	"boxgate/internal/socket"
	"boxgate/relay"
)

const (
	quietHold = time.Second     // time after which an idle direction gives its buffer back
	rest      = 5 * time.Second // how long one side of a WebSocket may go on after the other has closed
)

// Tunnel implements [relay.Side]. It forwards the 101 and then relays bytes both ways until both directions have ended, or one has and the other stays
// silent. n is the length of the response's head.
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
	c.up.in.Source = c.up.conn
	c.g.leave(&c.visit)
	p := pipe{
		client: c.Conn, box: c.up.conn, fromClient: &c.In, fromBox: &c.up.in, kill: socket.Abort,
		moved: func(byVisitor bool) { c.g.moved(&c.visit, byVisitor) },
	}
	err := p.run(c.ctx, func() (stop func() bool) { return time.AfterFunc(rest, p.abort).Stop })
	c.visit.event.BytesIn, c.visit.event.BytesOut = p.received.Load(), p.sent.Load()
	return err
}
