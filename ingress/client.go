package ingress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"boxgate/audit"
	"boxgate/internal/buffers"
	"boxgate/internal/h1"
	"boxgate/internal/socket"
)

// client is one HTTP/1.x connection of a client. One goroutine handles its requests in turn; a second one exists only
// while a body is uploaded that had not fully arrived.
type client struct {
	g      *Ingress
	conn   net.Conn // TLS or plain
	tcp    *net.TCPConn
	peer   string // address of the client
	secure bool
	sni    string
	busy   *atomic.Bool // a request has begun: see [listener]

	ctx    context.Context // ends with errCut when a request is cut; the connection then ends
	cancel context.CancelCauseFunc

	in   h1.Reader
	head int // length of the current request's head in the buffer
	req  h1.Request
	out  []byte // pending output, to either side

	visit    visit
	opening  audit.Opening // of the visit
	res      h1.Response
	resBody  h1.Body
	up       *upstream                // of the current request
	cuts     atomic.Pointer[upstream] // the same, for cut
	answered bool                     // a final response has begun
	upload   upload
	accepted credential
}

// credential is the Authorization of an earlier request, which need not be hashed again.
type credential struct {
	value string
	auth  Auth
}

var (
	// errEnd ends a connection gracefully.
	errEnd = errors.New("connection ends")
	// errLinger does so after the client has had time to read the last response.
	errLinger = errors.New("connection ends when the client has read the answer")
	// errAbort resets it: what the client has of a response must not look whole.
	errAbort = errors.New("connection is reset")
	// errGone is the client's disconnect.
	errGone = errors.New("the client disconnected")
)

// serve handles the requests of the connection until it ends.
func (c *client) serve() {
	defer c.cancel(nil)
	defer c.finish()
	wait := c.g.ReadHeaderTimeout
	for {
		if err := c.await(wait); err != nil {
			return
		}
		c.busy.Store(true)
		err := c.serveOne()
		c.busy.Store(false)
		switch {
		case errors.Is(err, errLinger):
			c.linger()
			return
		case errors.Is(err, errAbort):
			socket.Reset(c.conn)
			return
		case err != nil || c.ctx.Err() != nil || c.g.stopping.Load():
			return
		}
		wait = c.g.IdleTimeout
	}
}

func (c *client) finish() {
	c.in.Release()
	c.giveOut()
	_ = c.conn.SetWriteDeadline(time.Now().Add(socket.LingerTime)) // for a close_notify
	_ = c.conn.Close()
}

// cutNow makes the request in progress end, and the connection after it. A client that neither reads nor writes must not
// hold it up. It never blocks.
func (c *client) cutNow() {
	c.cancel(errCut)
	now := time.Now()
	_ = c.conn.SetReadDeadline(now)
	// Leave a moment to refuse a request that has no answer yet.
	_ = c.conn.SetWriteDeadline(now.Add(50 * time.Millisecond))
	if up := c.cuts.Load(); up != nil {
		up.abort()
	}
}

// await returns when the first byte of a request arrives. It keeps no buffer while it waits.
func (c *client) await(limit time.Duration) error {
	if len(c.in.Bytes()) > 0 {
		return nil // pipelined
	}
	c.giveOut()
	_ = c.conn.SetReadDeadline(time.Now().Add(limit))
	if c.ctx.Err() != nil { // a cut may have set an earlier deadline
		return c.ctx.Err()
	}
	return c.in.Wait()
}

// readHead reads the rest of a request head. The head stays in the buffer until it has been forwarded.
func (c *client) readHead() error {
	c.req.Reset()
	c.head = 0
	for tries := 0; ; tries++ {
		n, err := c.req.Parse(c.in.Bytes())
		short := errors.Is(err, h1.ErrShort)
		switch {
		case n > c.g.MaxHeaderBytes || short && len(c.in.Bytes()) > c.g.MaxHeaderBytes:
			return &h1.Error{Status: http.StatusRequestHeaderFieldsTooLarge, What: "its head is too large"}
		case !short:
			c.head = n
			return err
		case tries == 0:
			_ = c.conn.SetReadDeadline(time.Now().Add(c.g.ReadHeaderTimeout))
		}
		if err := c.in.Fill(); err != nil {
			return err
		}
	}
}

// serveOne handles one request. A nil error means that the connection can carry another.
func (c *client) serveOne() (err error) {
	began := time.Now()
	if err := c.readHead(); err != nil {
		return c.unreadable(began, err)
	}
	c.answered, c.upload = false, upload{}
	v := &c.visit
	*v = newVisit(c.asked(), c, c.cutNow, &c.opening)
	defer func() {
		if recover() != nil {
			c.g.panicked(v)
			err = errAbort
		}
		c.upload.stop(c)
		c.dropUpstream()
		c.g.record(v)
	}()
	if c.g.admit(c.ctx, v, c.permits) {
		return c.forward()
	}
	return c.refused()
}

// refused ends a request that was answered with a refusal.
func (c *client) refused() error {
	if c.ctx.Err() != nil || !c.keeps() {
		return errLinger
	}
	c.in.Take(c.head)
	return nil
}

// keeps reports whether the connection can carry another request after a response of the gateway's own: if nothing of
// this one is left to be read.
func (c *client) keeps() bool {
	return c.head > 0 && c.req.Body.Empty() && !c.req.Close && c.ctx.Err() == nil
}

// asked returns the head of the request for the checks.
func (c *client) asked() asked {
	r := &c.req
	path, _, _ := strings.Cut(string(r.Target), "?")
	return asked{
		method: method(r.Method), host: string(r.Host), path: path, sni: c.sni, secure: c.secure,
		direct: r.Form == h1.Origin, values: c.values,
	}
}

// values returns the values of a field of the request.
func (c *client) values(name string) []string { return valuesOf(c.req.Fields, name) }

// valuesOf returns the values of a field, whose name is given in lower case, one for each of its lines.
func valuesOf(fields []h1.Field, name string) (values []string) {
	for i := range fields {
		if f := &fields[i]; h1.EqualFold(f.Name, name) {
			values = append(values, string(f.Value))
		}
	}
	return values
}

// method converts a method without allocating for the common ones.
func method(m []byte) string {
	switch string(m) {
	case http.MethodGet:
		return http.MethodGet
	case http.MethodPost:
		return http.MethodPost
	case http.MethodHead:
		return http.MethodHead
	}
	return string(m)
}

// permits is [visit.permits], which hashes a credential once for all requests of the connection that repeat it.
func (c *client) permits(v *visit) bool {
	values := v.values("authorization")
	if len(values) == 1 && values[0] == c.accepted.value && c.accepted.value != "" && v.target.Auth.same(c.accepted.auth) {
		return true
	}
	if !v.target.Auth.permits(values) {
		return false
	}
	if len(values) == 1 {
		c.accepted = credential{values[0], v.target.Auth}
	}
	return true
}

// unreadable refuses a request whose head could not be read, and ends the connection.
func (c *client) unreadable(began time.Time, err error) error {
	c.head, c.visit.method = 0, ""
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

// takeOut returns the output buffer, emptied.
func (c *client) takeOut() []byte {
	if c.out == nil {
		c.out = buffers.BorrowOut()
	}
	return c.out[:0]
}

func (c *client) giveOut() {
	buffers.ReturnOut(c.out)
	c.out = nil
}

// flush writes the output buffer to the client.
func (c *client) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.conn.Write(c.out)
	c.out = c.out[:0]
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
