package ingress

import (
	"sync/atomic"
	"time"

	"boxgate/internal/buffers"
	"boxgate/internal/h1"
)

// forward sends an admitted request to the box and relays its response. A nil error means that the connection can carry
// another request.
func (c *client) forward() error {
	upgrade := c.upgrades()
	c.bound = c.bound || h1.LogsIn(c.req.Fields)
	c.head(upgrade)
	c.in.Take(c.headLen)
	c.headLen = 0
	c.body.begin(c)
	n, whole, err := 0, false, error(nil)
	if c.out, n, whole, err = c.body.gather(c.out); err != nil {
		return c.badBody(err)
	}
	c.upload.received = int64(n)
	if err := c.send(whole); err != nil {
		return c.unserved(err)
	}
	if !whole {
		c.deadline = time.Time{} // the upload sets its own
		c.upload.start(&c.body, c.up, func() { c.g.moved(&c.visit, true) })
	}
	return c.respond(upgrade)
}

// arriving is the body of a request over HTTP/1.x.
type arriving struct {
	c     *client
	body  h1.Body
	dry   bool        // all that has arrived is taken
	free  atomic.Bool // it may take any time
	ended atomic.Bool // it was interrupted
	until time.Time   // the deadline for reading
}

func (a *arriving) begin(c *client) {
	a.c, a.dry, a.until = c, false, time.Time{}
	a.free.Store(false)
	a.ended.Store(false)
	a.body.Begin(c.req.Body, false)
}

// gather appends what has arrived of the body to out, up to a limit, and reports how much content it is, and whether that is
// all of it.
func (a *arriving) gather(out []byte) (grown []byte, n int, last bool, err error) {
	in := &a.c.in
	for first := true; first || len(out) < buffers.OutFlush; first = false {
		content, taken, done, err := a.body.Next(in.Bytes())
		if err != nil {
			return out, n, false, err
		}
		n += len(content)
		out = a.append(out, content, done)
		in.Take(taken)
		a.dry = taken == 0 || len(in.Bytes()) == 0
		if done || a.dry {
			return out, n, done, nil
		}
	}
	return out, n, false, nil
}

func (a *arriving) append(out, content []byte, last bool) []byte {
	if !a.body.Chunked() {
		return append(out, content...)
	}
	if out = h1.AppendChunk(out, content); last {
		out = h1.AppendLastChunk(out, nil, nil)
	}
	return out
}

// more implements [source].
func (a *arriving) more(out []byte) (grown []byte, n int, last bool, err error) {
	if a.dry {
		a.wait()
		if err := a.c.in.Fill(); err != nil {
			return out, 0, false, h1.NoEOF(err)
		}
	}
	return a.gather(out)
}

// wait limits how long the next part may take. Setting a deadline costs more than reading the clock, so it is renewed only
// when a good part of it has passed.
func (a *arriving) wait() {
	limit := a.c.g.BodyTimeout
	if now := time.Now(); a.until.Sub(now) < limit/2 && !a.free.Load() {
		a.until = now.Add(limit)
		_ = a.c.conn.SetReadDeadline(a.until)
	}
	a.settle()
}

// settle sets the deadline that others may have set before, and wait has overwritten.
func (a *arriving) settle() {
	switch {
	case a.ended.Load() || a.c.ctx.Err() != nil:
		_ = a.c.conn.SetReadDeadline(time.Unix(1, 0))
	case a.free.Load():
		_ = a.c.conn.SetReadDeadline(time.Time{})
	}
}

// answered lets the rest of the body take its time, since the box has answered: they may talk to each other.
func (a *arriving) answered() {
	a.free.Store(true)
	a.settle()
}

// interrupt implements [source].
func (a *arriving) interrupt() {
	a.ended.Store(true)
	_ = a.c.conn.SetReadDeadline(time.Unix(1, 0))
}
