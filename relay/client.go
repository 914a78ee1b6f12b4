package relay

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"boxgate/internal/buffers"
	"boxgate/internal/socket"
	"boxgate/relay/h1"
)

// RestAfter is the time after which an idle connection gives back its buffers and its connection to the server.
const RestAfter = 250 * time.Millisecond

// BoundCheck is how often a connection that waits for a request looks whether the server's connection that is bound to it has ended.
const BoundCheck = time.Second

var (
	// ErrClientGone ends an exchange because the client has disconnected.
	ErrClientGone = errors.New("the client disconnected")
	// ErrLinger ends a connection after the client has had time to read the last response.
	ErrLinger = errors.New("connection ends when the client has read the answer")
	// ErrUnbound ends a client's connection because the server's connection, on which the client had logged in, has ended: the client
	// believes to be logged in.
	ErrUnbound = errors.New("the connection to the server, on which the client had logged in, has ended")
)

// Client is the connection of a client that speaks HTTP/1.x. One goroutine uses it at a time, except that an upload reads while
// another one writes.
type Client struct {
	Conn net.Conn
	In   h1.Reader
	Out  Output // for either side
	Head int    // length of the head of the current request in In; 0: it was taken
	Late bool   // the head of the current request arrived in several parts

	Stall time.Duration // how long a write to the client may make no progress; 0: for ever
	Cuts  Cuts          // nil: the connection is cut by closing Conn only

	Passed int64 // content of the current response that was written

	deadline time.Time // for reading, unless it has expired; zero: not set, or not known
	until    time.Time // for writing

	side   Writer // of the current request
	answer Answer // to it
	whole  bool   // the request was sent when the response began
}

// Cuts reports whether another goroutine has cut the connection by setting deadlines, which later ones must not replace.
type Cuts interface {
	// Cut returns a nil error, or the cause of the cut and the deadline for the last writes.
	Cut() (by time.Time, err error)
}

// ReadUntil calls read, which reads from the client, until it succeeds, fails, or the time has come. An earlier deadline is left
// to expire: setting one for each read would cost more.
func (c *Client) ReadUntil(until time.Time, read func() error) error {
	for {
		c.Limit(until)
		if err := c.cut(); err != nil { // which may have set an earlier deadline
			return err
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

func (c *Client) cut() error {
	if c.Cuts == nil {
		return nil
	}
	_, err := c.Cuts.Cut()
	return err
}

// Limit sets the deadline for reading, unless there is an earlier one.
func (c *Client) Limit(until time.Time) {
	if c.deadline.IsZero() || c.deadline.After(until) {
		_ = c.Conn.SetReadDeadline(until)
		c.deadline = until
	}
}

// Unlimited removes the deadline for reading.
func (c *Client) Unlimited() {
	c.Forget()
	_ = c.Conn.SetReadDeadline(time.Time{})
}

// Forget discards the remembered deadline for reading, because the caller sets deadlines on Conn itself.
func (c *Client) Forget() { c.deadline = time.Time{} }

// ReadHead reads the rest of the head of a request, of at most that many bytes, until a time. It stays in the buffer until it has
// been forwarded.
func (c *Client) ReadHead(r *h1.Request, most int, until time.Time) error {
	r.Reset()
	c.Head, c.Late = 0, false
	for {
		n, err := r.Parse(c.In.Bytes())
		short := errors.Is(err, h1.ErrShort)
		switch {
		case n > most || short && len(c.In.Bytes()) > most:
			return &h1.Error{Status: http.StatusRequestHeaderFieldsTooLarge, What: "its head is too large"}
		case !short:
			c.Head = n
			return err
		}
		c.Late = true
		if err := c.ReadUntil(until, c.In.Fill); err != nil {
			return err
		}
	}
}

// AwaitBound waits for a request while a connection to a server is bound to the client's. The end of that one, seen by quiet, ends
// it with [ErrUnbound].
func (c *Client) AwaitBound(end time.Time, quiet func() bool) error {
	c.Out.Give()
	c.In.Relax()
	for {
		next := time.Now().Add(BoundCheck)
		if next.After(end) {
			next = end
		}
		err := c.ReadUntil(next, c.In.Fill)
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded), !time.Now().Before(end):
			return err
		case !quiet():
			return ErrUnbound
		}
	}
}

// Reply is a whole response of the gateway's own to a client of HTTP/1.x.
type Reply struct {
	Status int
	Fields [][2]string
	Body   []byte
	Minor  uint8 // of the client's version
	Head   bool  // the method is HEAD: the body is left out
	Keep   bool  // the connection can carry another request
}

// Reply sends a response, and returns how much of it is body.
func (c *Client) Reply(r *Reply) (content int, err error) {
	out := h1.AppendStatus(c.Out.Take(), r.Status, []byte(http.StatusText(r.Status)))
	for _, f := range r.Fields {
		out = h1.AppendPair(out, f[0], f[1])
	}
	out = h1.AppendPair(out, "Content-Length", strconv.Itoa(len(r.Body)))
	switch {
	case !r.Keep:
		out = append(out, "Connection: close\r\n"...)
	case r.Minor == 0:
		out = append(out, "Connection: keep-alive\r\n"...)
	}
	out = append(out, "\r\n"...)
	if !r.Head {
		out = append(out, r.Body...)
		content = len(r.Body)
	}
	c.Out.Buf = out
	return content, c.Flush()
}

// Put appends content to the output, framed, or writes large content directly.
func (c *Client) Put(content []byte) error {
	c.Passed += int64(len(content))
	switch {
	case c.answer.Chunked:
		c.Out.Buf = h1.AppendChunk(c.Out.Buf, content)
	case len(c.Out.Buf)+len(content) <= 2*buffers.OutSize:
		c.Out.Buf = append(c.Out.Buf, content...)
	default:
		if err := c.Flush(); err != nil {
			return err
		}
		return c.write(content)
	}
	if len(c.Out.Buf) >= buffers.OutFlush {
		return c.Flush()
	}
	return nil
}

// Flush writes the output to the client.
func (c *Client) Flush() error {
	if len(c.Out.Buf) == 0 {
		return nil
	}
	err := c.write(c.Out.Buf)
	c.Out.Buf = c.Out.Buf[:0]
	return err
}

// write writes to the client, who must take some of it in time. Setting a deadline costs more than reading the clock, so it is
// renewed only when a good part of it has passed.
func (c *Client) write(b []byte) error {
	if now := time.Now(); c.Stall > 0 && c.until.Sub(now) < c.Stall/2 {
		c.until = now.Add(c.Stall)
		_ = c.Conn.SetWriteDeadline(c.until)
		if c.Cuts != nil {
			if by, err := c.Cuts.Cut(); err != nil {
				_ = c.Conn.SetWriteDeadline(by)
			}
		}
	}
	_, err := c.Conn.Write(b)
	return err
}

const (
	lingerTime  = 2 * time.Second
	lingerBytes = 1 << 20
)

// Linger ends a connection, which the caller then closes, after briefly reading what the client still sends: closing a socket with
// unread data resets it, and the client would lose the response (RFC 9112, 9.6).
func (c *Client) Linger() {
	_ = c.Conn.SetWriteDeadline(time.Now().Add(socket.LingerTime)) // for a close_notify
	socket.CloseWrite(c.Conn)
	c.In.Release()
	_ = c.Conn.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
}

// Output is pending output, to either side, in a pooled buffer. The zero value is empty and ready to use.
type Output struct{ Buf []byte }

// Take returns the buffer, emptied. Callers store the result of appending to it in Buf.
func (o *Output) Take() []byte {
	if o.Buf == nil {
		o.Buf = buffers.BorrowOut()
	}
	return o.Buf[:0]
}

// Give returns the buffer to the pool.
func (o *Output) Give() {
	buffers.ReturnOut(o.Buf)
	o.Buf = nil
}
