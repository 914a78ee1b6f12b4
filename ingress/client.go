package ingress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http2"

	"boxgate/internal/socket"
	"boxgate/policy"
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
	wait, now := c.g.ReadHeaderTimeout, time.Now()
	for {
		if err := c.await(now, wait); err != nil {
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
		wait, now = c.g.IdleTimeout, c.visit.began.Add(c.visit.event.Duration)
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

// await returns when a part of a request has arrived, or limit after since. After a while without one it gives its buffers back.
func (c *client) await(since time.Time, limit time.Duration) error {
	if len(c.In.Bytes()) > 0 {
		return nil // pipelined
	}
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
	if c.Late {
		began = time.Now()
	}
	v := &c.visit
	v.begin(began, c.asked(), c, c.cut, &c.opening, &c.entry)
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

// panickedIn logs a panic in an exchange with a box, without the panic's text, which might quote traffic.
func (g *core) panickedIn(box policy.BoxID) {
	g.Log.Error("panic in an exchange with a box", zap.String("box", string(box)), zap.ByteString("stack", debug.Stack()))
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

// This part implements [relay.Side] for responses to HTTP/1.x clients of public URLs.

// Interim implements [relay.Receiver].
func (c *client) Interim(*h1.Response) error { return c.Client.Interim(&c.Exchange, c) }

// Inspect implements [relay.Side].
func (c *client) Inspect(*h1.Response) error { return nil }

// Begin implements [relay.Side].
func (c *client) Begin() (end bool) {
	c.bound = c.bound || h1.LogsIn(c.Res.Fields)
	c.answered = true
	c.begun.Store(true)
	if c.Upload.Running() {
		c.body.answered()
	}
	c.visit.event.Status = c.Res.Status
	return c.bound && (c.Res.Close || c.up.raw == nil) || c.g.draining.Err() != nil
}

// Relay implements [relay.Side].
func (c *client) Relay() error { return c.Body.Copy(c) }

// Fill implements [relay.Sink].
func (e *exchange) Fill(in *h1.Reader) error {
	e.g.releaseBox(&e.visit)
	err := in.Fill()
	e.g.moved(&e.visit, false)
	return err
}

// AppendEnd implements [relay.Side].
func (c *client) AppendEnd(dst []byte, trailers []h1.Field) []byte {
	return h1.AppendLastChunk(dst, trailers, c.withheld)
}

// BadBody implements [relay.Side].
func (c *client) BadBody(err error) error { return c.badBody(err) }

// Unsent implements [relay.Side].
func (c *client) Unsent(err error) error { return c.unserved(err) }

// NoResponse implements [relay.Side].
func (c *client) NoResponse(err error) error { return c.noResponse(err) }

// Broken implements [relay.Side].
func (c *client) Broken(err error) error {
	c.received()
	c.visit.event.BytesOut, c.visit.event.Error = c.Passed, err.Error()
	if c.wasCut() {
		c.visit.event.Error = errCut.Error()
	}
	return errAbort
}

// Settle implements [relay.Side].
func (c *client) Settle(reuse bool) (end bool) {
	c.received()
	c.visit.event.BytesOut = c.Passed
	if reuse && len(c.up.in.Bytes()) == 0 && c.ctx.Err() == nil {
		c.keepUpstream()
	}
	return c.bound && c.own == nil
}

// This part handles applications that authenticate a connection instead of each request (NTLM, Negotiate): later requests on
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
