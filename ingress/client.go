package ingress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/net/http2"

	"boxgate/internal/socket"
	"boxgate/relay"
	"boxgate/relay/h1"
)

// client is one HTTP/1.x connection. One goroutine handles its requests in turn. A second one exists only during the upload of
// a body that had not fully arrived.
type client struct {
	relay.Client
	exchange
	tcp    *net.TCPConn
	held   *held                   // the connection
	cancel context.CancelCauseFunc // of ctx: when a request is cut, the connection ends
	cut    func()                  // cutNow, made once
	move   *redirection            // nil: requests are forwarded

	answered bool     // a final response has begun
	body     arriving // of the current request
}

// serve handles the requests of the connection until it ends.
func (c *client) serve() {
	defer c.cancel(nil)
	defer c.finish()
	wait := c.g.ReadHeaderTimeout
	for {
		if err := c.await(wait); err != nil {
			return
		}
		c.held.begin()
		err := c.serveOne()
		c.held.busy.Store(false)
		switch {
		case errors.Is(err, relay.ErrLinger):
			c.Linger()
			return
		case errors.Is(err, errAbort):
			socket.Reset(c.Conn)
			return
		case err != nil || c.ctx.Err() != nil || c.g.draining.Err() != nil:
			return
		}
		wait = c.g.IdleTimeout
	}
}

func (c *client) finish() {
	c.untie()
	c.In.Release()
	c.Out.Give()
	_ = c.Conn.SetWriteDeadline(time.Now().Add(socket.LingerTime)) // for a close_notify
	_ = c.Conn.Close()
}

// cutNow ends the request in progress, then the connection, even if the client neither reads nor writes. It never blocks.
func (c *client) cutNow() {
	c.cancel(errCut)
	_ = c.Conn.SetReadDeadline(time.Now())
	_ = c.Conn.SetWriteDeadline(c.cutBy())
	c.abortUpstream()
}

// await returns when a part of a request has arrived. After a while without one it gives its buffers back.
func (c *client) await(limit time.Duration) error {
	if len(c.In.Bytes()) > 0 {
		return nil // pipelined
	}
	since := time.Now()
	c.In.Relax()
	if c.own != nil {
		return c.awaitBound(since.Add(limit))
	}
	if err := c.ReadUntil(since.Add(min(relay.RestAfter, limit)), c.In.Fill); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	c.Out.Give()
	c.In.Release()
	return c.ReadUntil(since.Add(limit), c.In.Wait)
}

// serveOne handles one request. A nil error means that the connection can carry another.
func (c *client) serveOne() (err error) {
	began := time.Now()
	if err := c.ReadHead(&c.Req, c.g.MaxHeaderBytes, began.Add(c.g.ReadHeaderTimeout)); err != nil {
		return c.unreadable(began, err)
	}
	c.answered = false
	c.begun.Store(false)
	c.Upload.Reset()
	v := &c.visit
	*v = newVisit(c.asked(), c, c.cut, &c.opening, &c.entry)
	defer func() {
		if recover() != nil {
			c.g.panicked(v)
			err = errAbort
		}
		c.Upload.Stop()
		c.Drop()
		c.g.record(v)
	}()
	switch {
	case c.move != nil:
		c.move.answer(c.g, v, string(c.Req.Target))
	case c.g.admit(c.ctx, v, c.visitor.permits):
		return c.forward()
	}
	return c.refused()
}

// refused ends a request that was answered with a refusal.
func (c *client) refused() error {
	if c.ctx.Err() != nil || !c.keeps() {
		return relay.ErrLinger
	}
	c.In.Take(c.Head)
	return nil
}

// keeps reports whether the connection can carry another request after a response of the gateway's own. The request must have
// no unread body.
func (c *client) keeps() bool {
	return c.Head > 0 && c.Req.Body.Empty() && !c.Req.Close && c.ctx.Err() == nil
}

// unreadable refuses a request whose head could not be read, and ends the connection.
func (c *client) unreadable(began time.Time, err error) error {
	c.Head, c.visit.method = 0, ""
	var malformed *h1.Error
	switch {
	case errors.As(err, &malformed):
		c.g.refusedUnread(began, malformed.What)
		c.answered = false
		c.reply(malformed.Status, [][2]string{{"Content-Type", "text/plain; charset=utf-8"}}, []byte(http.StatusText(malformed.Status)+": "+malformed.What+"\n"))
		return relay.ErrLinger
	case errors.Is(err, io.EOF):
		c.g.refusedUnread(began, "the connection ended within a request head")
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.g.refusedUnread(began, "a request head was not complete in time")
	default:
		c.g.refusedUnread(began, "no request could be read")
	}
	return errEnd
}

// reply implements [replier].
func (c *client) reply(status int, fields [][2]string, body []byte) {
	if c.answered {
		return
	}
	c.answered = true
	c.visit.event.Status = status
	if hsts := c.hsts(); hsts != "" {
		fields = append(fields, [2]string{"Strict-Transport-Security", hsts})
	}
	n, _ := c.Reply(&relay.Reply{ // the client may have gone
		Status: status, Fields: fields, Body: body, Minor: c.Req.Minor, Keep: c.keeps(),
		Head: c.visit.method == http.MethodHead, // the buffer that c.Req points into may have been overwritten
	})
	c.visit.event.BytesOut += int64(n)
}

// reset implements [side]. Over HTTP/1.1 a request cannot be reset alone.
func (c *client) reset(http2.ErrCode) bool { return false }
