package ingress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/net/http2"

	"boxgate/internal/h1"
	"boxgate/internal/socket"
)

// restAfter is the time after which a connection that waits for a request keeps no buffers.
const restAfter = 250 * time.Millisecond

// client is one HTTP/1.x connection of a client. One goroutine handles its requests in turn; a second one exists only
// while a body is uploaded that had not fully arrived.
type client struct {
	exchange
	conn   net.Conn // TLS or plain
	tcp    *net.TCPConn
	held   *held                   // the connection
	cancel context.CancelCauseFunc // of ctx: when a request is cut, the connection ends
	cut    func()                  // cutNow, made once
	move   *redirection            // nil: requests are forwarded

	in       h1.Reader
	headLen  int       // of the current request's head in the buffer
	answered bool      // a final response has begun
	body     arriving  // of the current request
	until    time.Time // the deadline for writing
	deadline time.Time // that for reading, unless it has expired; zero: none, or not known
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
		case errors.Is(err, errLinger):
			c.linger()
			return
		case errors.Is(err, errAbort):
			socket.Reset(c.conn)
			return
		case err != nil || c.ctx.Err() != nil || c.g.draining.Err() != nil:
			return
		}
		wait = c.g.IdleTimeout
	}
}

func (c *client) finish() {
	c.untie()
	c.in.Release()
	c.giveOut()
	_ = c.conn.SetWriteDeadline(time.Now().Add(socket.LingerTime)) // for a close_notify
	_ = c.conn.Close()
}

// cutNow makes the request in progress end, and the connection after it. A client that neither reads nor writes must not
// hold it up. It never blocks.
func (c *client) cutNow() {
	c.cancel(errCut)
	_ = c.conn.SetReadDeadline(time.Now())
	_ = c.conn.SetWriteDeadline(c.cutBy())
	c.abortUpstream()
}

// await returns when the beginning of a request has arrived. When it has waited for a while it keeps no buffers.
func (c *client) await(limit time.Duration) error {
	if len(c.in.Bytes()) > 0 {
		return nil // pipelined
	}
	since := time.Now()
	c.in.Relax()
	if c.own != nil {
		return c.awaitBound(since.Add(limit))
	}
	if err := c.readUntil(since.Add(min(restAfter, limit)), c.in.Fill); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	c.giveOut()
	c.in.Release()
	return c.readUntil(since.Add(limit), c.in.Wait)
}

// readUntil calls read, which reads from the client, until it succeeds, fails, or the time has come. An earlier deadline
// is left to expire: setting one for each read would cost more.
func (c *client) readUntil(until time.Time, read func() error) error {
	for {
		if c.deadline.IsZero() || c.deadline.After(until) {
			_ = c.conn.SetReadDeadline(until)
			c.deadline = until
		}
		if c.ctx.Err() != nil { // a cut may have set an earlier one
			return c.ctx.Err()
		}
		err := read()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		c.deadline = time.Time{}
		if !time.Now().Before(until) {
			return err
		}
	}
}

// readHead reads the rest of a request head. The head stays in the buffer until it has been forwarded.
func (c *client) readHead(began time.Time) error {
	c.req.Reset()
	c.headLen = 0
	for {
		n, err := c.req.Parse(c.in.Bytes())
		short := errors.Is(err, h1.ErrShort)
		switch {
		case n > c.g.MaxHeaderBytes || short && len(c.in.Bytes()) > c.g.MaxHeaderBytes:
			return &h1.Error{Status: http.StatusRequestHeaderFieldsTooLarge, What: "its head is too large"}
		case !short:
			c.headLen = n
			return err
		}
		if err := c.readUntil(began.Add(c.g.ReadHeaderTimeout), c.in.Fill); err != nil {
			return err
		}
	}
}

// serveOne handles one request. A nil error means that the connection can carry another.
func (c *client) serveOne() (err error) {
	began := time.Now()
	if err := c.readHead(began); err != nil {
		return c.unreadable(began, err)
	}
	c.answered = false
	c.begun.Store(false)
	c.upload.reset()
	v := &c.visit
	*v = newVisit(c.asked(), c, c.cut, &c.opening, &c.entry)
	defer func() {
		if recover() != nil {
			c.g.panicked(v)
			err = errAbort
		}
		c.upload.stop(c.up)
		c.dropUpstream()
		c.g.record(v)
	}()
	switch {
	case c.move != nil:
		c.move.answer(c.g, v, string(c.req.Target))
	case c.g.admit(c.ctx, v, c.visitor.permits):
		return c.forward()
	}
	return c.refused()
}

// refused ends a request that was answered with a refusal.
func (c *client) refused() error {
	if c.ctx.Err() != nil || !c.keeps() {
		return errLinger
	}
	c.in.Take(c.headLen)
	return nil
}

// keeps reports whether the connection can carry another request after a response of the gateway's own: if nothing of
// this one is left to be read.
func (c *client) keeps() bool {
	return c.headLen > 0 && c.req.Body.Empty() && !c.req.Close && c.ctx.Err() == nil
}

// unreadable refuses a request whose head could not be read, and ends the connection.
func (c *client) unreadable(began time.Time, err error) error {
	c.headLen, c.visit.method = 0, ""
	var malformed *h1.Error
	switch {
	case errors.As(err, &malformed):
		c.g.refusedUnread(began, malformed.What)
		c.answered = false
		c.reply(malformed.Status, [][2]string{{"Content-Type", "text/plain; charset=utf-8"}}, []byte(http.StatusText(malformed.Status)+": "+malformed.What+"\n"))
		return errLinger
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
	out := h1.AppendStatus(c.takeOut(), status, []byte(http.StatusText(status)))
	for _, f := range fields {
		out = h1.AppendPair(out, f[0], f[1])
	}
	if hsts := c.hsts(); hsts != "" {
		out = h1.AppendPair(out, "Strict-Transport-Security", hsts)
	}
	out = h1.AppendPair(out, "Content-Length", strconv.Itoa(len(body)))
	switch {
	case !c.keeps():
		out = h1.AppendPair(out, "Connection", "close")
	case c.req.Minor == 0:
		out = h1.AppendPair(out, "Connection", "keep-alive")
	}
	out = append(out, "\r\n"...)
	if c.visit.method != http.MethodHead { // what c.req points to may be overwritten by now
		out = append(out, body...)
		c.visit.event.BytesOut += int64(len(body))
	}
	c.out = out
	_ = c.flush() // the client may have gone
}

// flush writes the output buffer to the client.
func (c *client) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	err := c.write(c.out)
	c.out = c.out[:0]
	return err
}

// write writes to the client, who must take some of it in time. The deadline is renewed as in [arriving.wait].
func (c *client) write(b []byte) error {
	limit := c.g.BodyTimeout
	if now := time.Now(); c.until.Sub(now) < limit/2 {
		c.until = now.Add(limit)
		_ = c.conn.SetWriteDeadline(c.until)
		if c.ctx.Err() != nil { // a cut may have set an earlier one
			_ = c.conn.SetWriteDeadline(c.cutBy())
		}
	}
	_, err := c.conn.Write(b)
	return err
}

const (
	lingerTime  = 2 * time.Second
	lingerBytes = 1 << 20
)

// linger closes the connection after briefly reading what the client still sends: closing a socket with unread data
// resets it, and the client would lose the response (RFC 9112, 9.6).
func (c *client) linger() {
	_ = c.conn.SetWriteDeadline(time.Now().Add(socket.LingerTime))
	socket.CloseWrite(c.conn)
	c.in.Release()
	_ = c.conn.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, c.conn, lingerBytes)
}

// reset implements [side]. Over HTTP/1.1 a request cannot be reset alone.
func (c *client) reset(http2.ErrCode) bool { return false }
