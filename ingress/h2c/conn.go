package h2c

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h1"
	"boxgate/relay/h2/upstream"
)

var (
	// errForm reports a request that is not in the form of HTTP/1.1, or a write that ends within a chunk.
	errForm = errors.New("the request is not in the form of HTTP/1.1")
	// errReset reports a response that the application did not complete.
	errReset = errors.New("the application reset the stream")
)

// conn is one request and its response. One goroutine may write while another reads; Close may be called at any time.
type conn struct {
	ctx           context.Context // of the request
	cancel        context.CancelFunc
	up            *upstream.Conn  // shared with other requests
	leave         func(used bool) // ends the use of up
	local, remote net.Addr
	late          atomic.Int64 // the read deadline, in Unix nanoseconds; 0: no deadline

	mu     sync.Mutex
	stream *upstream.Stream // nil until the head is written
	spent  bool             // the reserved stream was opened, or opening it failed
	closed bool

	body  h1.Body // used by the writer only: the request's
	heard bool    // used by the writer only: the application needs no more of the request
	down  response
}

var _ net.Conn = (*conn)(nil)

// Write implements [net.Conn]. The first call must contain the whole head, and each call whole chunks.
func (c *conn) Write(b []byte) (int, error) {
	s := c.opened()
	rest, done := b, false
	if s == nil {
		var err error
		if s, rest, done, err = c.open(b); err != nil {
			return 0, err
		}
	}
	if done || c.heard {
		return len(b), nil
	}
	err := c.send(s, rest)
	if c.heard = enough(err); c.heard {
		return len(b), nil // no more chunks are sent, so c.body may stop within one
	}
	return len(b), err
}

// enough reports whether a write failed because the application needs no more of the request. Its response must still be read
// (RFC 9113, 8.1).
func enough(err error) bool {
	code, ok := upstream.ResetCode(err)
	return ok && code == http2.ErrCodeNo
}

func (c *conn) opened() *upstream.Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream
}

// open sends the head. It returns the rest of b, and whether the head was the whole request.
func (c *conn) open(b []byte) (s *upstream.Stream, rest []byte, done bool, err error) {
	var req h1.Request
	n, err := req.Parse(b)
	if err != nil {
		return nil, nil, false, errors.Join(errForm, err)
	}
	c.down.head = string(req.Method) == "HEAD"
	c.body.Begin(req.Body, false)
	fields := requestFields(&req)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, false, net.ErrClosed
	}
	c.spent = true
	done = req.Body.Empty()
	if s, err = c.up.Open(c.ctx, fields, done); err != nil {
		return nil, nil, false, err
	}
	c.stream = s
	return s, b[n:], done, nil
}

// requestFields returns the head of a request as fields of HTTP/2 (RFC 9113, 8.3.1).
func requestFields(req *h1.Request) []hpack.HeaderField {
	fields := make([]hpack.HeaderField, 0, len(req.Fields)+4)
	fields = append(fields,
		hpack.HeaderField{Name: ":method", Value: string(req.Method)}, hpack.HeaderField{Name: ":scheme", Value: "http"},
		hpack.HeaderField{Name: ":authority", Value: string(req.Host)}, hpack.HeaderField{Name: ":path", Value: string(req.Target)})
	for i := range req.Fields {
		switch f := &req.Fields[i]; f.Kind {
		case h1.Host, h1.Connection, h1.TransferEncoding, h1.HopByHop, h1.Upgrade:
		default:
			fields = append(fields, hpack.HeaderField{Name: lower(f.Name), Value: string(f.Value)})
		}
	}
	return fields
}

// lower returns a name in lower case.
func lower(name []byte) string {
	b := make([]byte, len(name))
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		b[i] = c
	}
	return string(b)
}

// send sends the next part of the body.
func (c *conn) send(s *upstream.Stream, b []byte) error {
	for len(b) > 0 {
		content, n, done, err := c.body.Next(b)
		if err != nil {
			return errors.Join(errForm, err)
		}
		if len(content) > 0 {
			if _, err := s.Write(content); err != nil {
				return err
			}
		}
		if b = b[n:]; done {
			return s.CloseWrite(nil)
		}
		if n == 0 {
			return errForm
		}
	}
	return nil
}

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	s := c.opened()
	if s == nil {
		return 0, net.ErrClosed
	}
	for {
		n, err := c.down.read(s, b)
		if n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		if err := c.await(s); err != nil {
			return 0, err
		}
	}
}

// await waits for more of the response until the read deadline.
func (c *conn) await(s *upstream.Stream) error {
	var late <-chan time.Time
	if at := c.late.Load(); at != 0 {
		left := time.Until(time.Unix(0, at))
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		t := time.NewTimer(left)
		defer t.Stop()
		late = t.C
	}
	if err := s.Await(late); err != nil && c.ctx.Err() == nil {
		return err
	}
	if c.ctx.Err() != nil {
		return net.ErrClosed
	}
	return nil
}

// Close implements [net.Conn]. It does not block: a request that has not ended is reset.
func (c *conn) Close() error {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	if c.stream != nil {
		c.stream.Close()
	}
	c.leave(c.spent)
	return nil
}

// SetReadDeadline implements [net.Conn]. It applies to reads that begin later.
func (c *conn) SetReadDeadline(t time.Time) error {
	at := int64(0)
	if !t.IsZero() {
		at = t.UnixNano()
	}
	c.late.Store(at)
	return nil
}

// SetDeadline implements [net.Conn], for reads.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline implements [net.Conn]. It has no effect: Close ends writes.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// LocalAddr implements [net.Conn].
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements [net.Conn].
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// response converts a response over HTTP/2 to the form of HTTP/1.1.
type response struct {
	head    bool // this is the response to a HEAD request
	begun   bool // the final head has arrived
	chunked bool
	ended   bool
	out     []byte // not yet read
	pos     int
}

// read fills b with the bytes that have arrived. It returns 0 and no error if there are none yet.
func (r *response) read(s *upstream.Stream, b []byte) (int, error) {
	if r.pos == len(r.out) {
		r.out, r.pos = r.out[:0], 0
		if err := r.more(s); err != nil {
			return 0, err
		}
	}
	n := copy(b, r.out[r.pos:])
	if r.pos += n; n == 0 && r.ended {
		return 0, io.EOF
	}
	return n, nil
}

// more appends the data that has arrived to the output.
func (r *response) more(s *upstream.Stream) error {
	switch {
	case r.ended:
		return io.EOF
	case !r.begun:
		h, ok, err := s.HeadArrived()
		if err != nil || !ok {
			return err
		}
		r.begin(&h)
		return nil
	}
	var piece [8 << 10]byte
	n, err := s.ReadArrived(piece[:])
	switch {
	case n > 0 && r.chunked:
		r.out = h1.AppendChunk(r.out, piece[:n])
	case n > 0:
		r.out = append(r.out, piece[:n]...)
	case errors.Is(err, io.EOF):
		r.appendBodyEnd(s.Trailers())
	case err != nil:
		return errors.Join(errReset, err)
	}
	return nil
}

// begin appends a head. A body is sent in chunks unless its length is known and no trailers are announced: only chunks can
// carry trailers.
func (r *response) begin(h *upstream.Head) {
	r.out = h1.AppendStatus(r.out, h.Status, []byte(http.StatusText(h.Status)))
	bodiless := r.head || h.Interim() || h.Status == http.StatusNoContent || h.Status == http.StatusNotModified
	r.begun = !h.Interim()
	r.chunked = !bodiless && !h.End && (h.Length < 0 || announces(h.Fields))
	for i := range h.Fields {
		if f := &h.Fields[i]; f.Name != "content-length" {
			r.out = h1.AppendPair(r.out, f.Name, f.Value)
		}
	}
	switch {
	case r.chunked:
		r.out = append(r.out, "Transfer-Encoding: chunked\r\n"...)
	case h.Length >= 0:
		r.out = h1.AppendPair(r.out, "Content-Length", strconv.FormatInt(h.Length, 10))
	case !bodiless:
		r.out = append(r.out, "Content-Length: 0\r\n"...)
	}
	r.out = append(r.out, "\r\n"...)
	r.ended = r.begun && (bodiless || h.End)
}

// announces reports whether a head announces trailers.
func announces(fields []hpack.HeaderField) bool {
	for i := range fields {
		if fields[i].Name == "trailer" {
			return true
		}
	}
	return false
}

// appendBodyEnd appends the end of the body.
func (r *response) appendBodyEnd(trailers []hpack.HeaderField) {
	r.ended = true
	if !r.chunked {
		return
	}
	r.out = append(r.out, "0\r\n"...)
	for i := range trailers {
		r.out = h1.AppendPair(r.out, trailers[i].Name, trailers[i].Value)
	}
	r.out = append(r.out, "\r\n"...)
}
