package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"boxgate/internal/buffers"
	"boxgate/internal/h1"
	"boxgate/policy"
)

// forward sends an admitted request to the box and relays its response. A nil error means that the connection can carry
// another request.
func (c *client) forward() error {
	r := &c.req
	upgrade := r.Upgrade != nil && r.Minor > 0 && r.Body.Empty() && h1.EqualFold(r.Upgrade, "websocket")
	c.out = appendRequest(c.takeOut(), r, &forwarding{client: c.peer, secure: c.secure, open: c.visit.target.Auth.open(), upgrade: upgrade})
	c.in.Take(c.head)
	c.head = 0
	u := &c.upload
	u.body.Begin(r.Body, false)
	whole, err := false, error(nil)
	if c.out, whole, err = u.gather(&c.in, c.out); err != nil {
		return c.badBody(err)
	}
	if err := c.send(whole); err != nil {
		return c.unserved(err)
	}
	if !whole {
		u.start(c)
	}
	return c.respond(upgrade)
}

// send writes the output buffer to the box and, if that is the whole request, waits for the first byte of the response.
// The box may just have closed a connection that was kept: a request that may be repeated is then tried once on a new
// one.
func (c *client) send(whole bool) error {
	again := whole && c.upload.received == 0 && (isSafe(c.visit.method) || c.visit.method == http.MethodPut || c.visit.method == http.MethodDelete)
	for {
		if err := c.connect(); err != nil {
			return err
		}
		_, err := c.up.conn.Write(c.out)
		if err == nil && whole {
			err = c.up.in.Fill()
		}
		if err == nil || errors.Is(err, errGone) || c.ctx.Err() != nil {
			return err
		}
		if !whole && !c.up.used {
			return nil // the upload meets the same error; the box may have answered before it closed
		}
		if !c.up.used || !again {
			return err
		}
		c.dropUpstream()
	}
}

// connect takes a connection to the box's port, one that was kept or a new one.
func (c *client) connect() error {
	up, err := c.g.upstreams.get(c.visit.target, c.dial)
	if err != nil {
		return err
	}
	up.gone = c.gone
	c.up = up
	if c.cuts.Store(up); c.ctx.Err() != nil { // cutNow may have looked before it was there
		return errCut
	}
	return nil
}

// dial connects to the box's port. It ends when the request is cut.
func (c *client) dial(t Target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.g.DialTimeout)
	defer cancel()
	return c.g.Dial(ctx, t)
}

// dropUpstream closes the connection to the box, unless it was kept.
func (c *client) dropUpstream() {
	if c.up != nil {
		c.cuts.Store(nil)
		c.up.close()
		c.up = nil
	}
}

// keepUpstream leaves the connection to the box, whose exchange has ended, for other requests.
func (c *client) keepUpstream() {
	c.cuts.Store(nil)
	c.g.upstreams.put(c.up)
	c.up = nil
}

// unserved answers when the box could not be reached or closed the connection before its answer.
func (c *client) unserved(err error) error {
	v := &c.visit
	switch {
	case c.ctx.Err() != nil:
		v.revoked()
	case errors.Is(err, errGone):
		v.event.Error = errGone.Error()
		return errEnd
	default:
		v.unavailable(err)
	}
	return errLinger
}

// badBody refuses a request whose body makes no sense. The rest of it is not read.
func (c *client) badBody(err error) error {
	c.visit.event.Error = err.Error()
	c.visit.refuse(http.StatusBadRequest, policy.ReasonBadRequest, "The body of the request is malformed.")
	return errLinger
}

// upload sends the body of one request to the box. Its trailers are dropped: they could repeat any field that was removed
// from the head.
type upload struct {
	body     h1.Body
	received int64
	dry      bool          // all that arrived is sent
	stopped  bool          // it was interrupted here, not by the client
	done     chan struct{} // nil when everything was sent with the head
	err      error         // valid once done is closed
}

// gather appends what has arrived of the body to out, up to a limit, and reports whether that is all of it.
func (u *upload) gather(in *h1.Reader, out []byte) ([]byte, bool, error) {
	for first := true; first || len(out) < buffers.OutFlush; first = false {
		content, n, done, err := u.body.Next(in.Bytes())
		if err != nil {
			return out, false, err
		}
		out = u.append(out, content, done)
		in.Take(n)
		u.dry = n == 0 || len(in.Bytes()) == 0
		if done || u.dry {
			return out, done, nil
		}
	}
	return out, false, nil
}

func (u *upload) append(out, content []byte, last bool) []byte {
	u.received += int64(len(content))
	if !u.body.Chunked() {
		return append(out, content...)
	}
	if out = h1.AppendChunk(out, content); last {
		out = h1.AppendLastChunk(out, nil, nil)
	}
	return out
}

// start sends the rest of the body in a goroutine, so that a response can be relayed before the body has ended.
func (u *upload) start(c *client) {
	u.done = make(chan struct{})
	up := c.up
	_ = c.conn.SetReadDeadline(time.Time{}) // a body may take its time
	if c.ctx.Err() != nil {
		_ = c.conn.SetReadDeadline(time.Now())
	}
	go func() {
		defer close(u.done)
		defer func() {
			if p := recover(); p != nil {
				u.err = fmt.Errorf("panic in an upload: %T", p)
				up.abort()
			}
		}()
		if u.err = u.run(&c.in, up); u.err != nil && !errors.Is(u.err, errUpstream) {
			up.abort() // the client has gone: the box must not take a part of the body for the whole
		}
	}()
}

// errUpstream is a failure of the box during an upload. Its response may still be readable.
var errUpstream = errors.New("the box takes no more of the body")

func (u *upload) run(in *h1.Reader, up *upstream) error {
	out := buffers.BorrowOut()
	defer func() { buffers.ReturnOut(out) }()
	for whole := false; !whole; {
		if u.dry {
			if err := in.Fill(); err != nil {
				return h1.NoEOF(err)
			}
		}
		var err error
		if out, whole, err = u.gather(in, out[:0]); err != nil {
			return err
		}
		if _, err := up.conn.Write(out); err != nil {
			return errors.Join(errUpstream, err)
		}
	}
	return nil
}

// finished reports whether the whole body was sent. It waits briefly: the box may respond to the last byte before the
// goroutine that sent it is done.
func (u *upload) finished() bool {
	if u.done == nil {
		return true
	}
	moment := time.NewTimer(10 * time.Millisecond)
	defer moment.Stop()
	select {
	case <-u.done:
		return u.err == nil
	case <-moment.C:
		return false
	}
}

// stop ends an upload whose outcome no longer matters, and waits until it has released the client's reader.
func (u *upload) stop(c *client) {
	if u.done == nil {
		return
	}
	select {
	case <-u.done:
	default:
		u.stopped = true
		if c.up != nil {
			c.up.abort()
		}
		_ = c.conn.SetReadDeadline(time.Unix(1, 0))
		<-u.done
	}
	u.done = nil
}

// clientFault returns why an upload failed for a reason of the client, or nil.
func (u *upload) clientFault() error {
	var malformed *h1.Error
	switch {
	case u.err == nil || u.stopped || errors.Is(u.err, errUpstream):
		return nil
	case errors.As(u.err, &malformed):
		return malformed
	case errors.Is(u.err, io.ErrUnexpectedEOF):
		return errGone
	}
	return u.err
}
