package ingress

import (
	"runtime/debug"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"boxgate/policy"
	"boxgate/relay"
	"boxgate/relay/h1"
)

// forward sends an admitted request to the box and relays its response. A nil error means that the connection can carry
// another request.
func (c *client) forward() error {
	upgrade := relay.OpensWebSocket(&c.Req)
	c.bound = c.bound || h1.LogsIn(c.Req.Fields)
	c.head(upgrade)
	c.body.begin(c)
	c.Source = &c.body
	return c.Forward(&c.Exchange, c, upgrade, c.own != nil)
}

// arriving is the body of a request over HTTP/1.x ([relay.Source]). Its trailers are dropped, as they could repeat fields that
// were removed from the head.
type arriving struct {
	relay.Body
	c     *client
	free  atomic.Bool // no time limit
	ended atomic.Bool // interrupted
	until time.Time   // the deadline for reading
}

func (a *arriving) begin(c *client) {
	a.c, a.until = c, time.Time{}
	a.free.Store(false)
	a.ended.Store(false)
	a.Begin(&c.In, c.Req.Body, a)
}

// Gather implements [relay.Source].
func (a *arriving) Gather(head []byte) (grown []byte, content int, whole bool, err error) {
	if grown, content, whole, err = a.Body.Gather(head); !whole {
		a.c.Forget() // Await sets deadlines on the connection itself
	}
	return grown, content, whole, err
}

// More implements [relay.Source].
func (a *arriving) More(out *relay.Output) (framed []byte, content int, last bool, err error) {
	if framed, content, last, err = a.Body.More(out); err == nil {
		a.c.g.moved(&a.c.visit, true)
	}
	return framed, content, last, err
}

// Panicked implements [relay.Source].
func (a *arriving) Panicked(any) { a.c.g.panickedIn(a.c.visit.target.Box) }

// panickedIn logs that sending a body panicked, without the panic's text, which might quote traffic.
func (g *core) panickedIn(box policy.BoxID) {
	g.Log.Error("panic while sending a body to a box", zap.String("box", string(box)), zap.ByteString("stack", debug.Stack()))
}

// Look implements [relay.Inspector].
func (a *arriving) Look([]byte) error { return nil }

// End implements [relay.Inspector].
func (a *arriving) End([]h1.Field) error { return nil }

// AppendLast implements [relay.Inspector].
func (a *arriving) AppendLast(out []byte, _ []h1.Field) []byte {
	return h1.AppendLastChunk(out, nil, nil)
}

// Await implements [relay.Inspector]: it limits how long the next part may take. Setting a deadline costs more than reading
// the clock, so the deadline is renewed only when half of it has passed.
func (a *arriving) Await() {
	limit := a.c.g.BodyTimeout
	if now := time.Now(); a.until.Sub(now) < limit/2 && !a.free.Load() {
		a.until = now.Add(limit)
		_ = a.c.Conn.SetReadDeadline(a.until)
	}
	a.applyDeadline()
}

// applyDeadline restores a deadline of another goroutine that Await may have overwritten.
func (a *arriving) applyDeadline() {
	switch {
	case a.ended.Load() || a.c.ctx.Err() != nil:
		_ = a.c.Conn.SetReadDeadline(time.Unix(1, 0))
	case a.free.Load():
		_ = a.c.Conn.SetReadDeadline(time.Time{})
	}
}

// answered removes the time limit from the rest of the body, since the box has answered: the two may hold a conversation.
func (a *arriving) answered() {
	a.free.Store(true)
	a.applyDeadline()
}

// Interrupt implements [relay.Source].
func (a *arriving) Interrupt() {
	a.ended.Store(true)
	_ = a.c.Conn.SetReadDeadline(time.Unix(1, 0))
}
