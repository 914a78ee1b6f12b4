package relay

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"boxgate/internal/handshake"
	"boxgate/relay/h1"
)

// InterimMax is how many 1xx responses to one request are passed on.
const InterimMax = 32

// ErrProtocol ends an exchange whose server broke the protocol.
var ErrProtocol = errors.New("the upstream broke the protocol")

// Receiver gets the heads of a response.
type Receiver interface {
	// Received is called with each head before anything is made of it. It may change all but the framing.
	Received(*h1.Response)
	// Interim passes a 1xx response on.
	Interim(*h1.Response) error
}

// FinalHead reads heads of the response to a method up to the final one, whose length it returns. That one stays in the buffer.
func FinalHead(in *h1.Reader, r *h1.Response, method string, to Receiver) (int, error) {
	for range InterimMax {
		n, err := responseHead(in, r, method)
		if err != nil {
			return 0, err
		}
		if to.Received(r); !r.Interim() {
			return n, nil
		}
		if err := to.Interim(r); err != nil {
			return 0, err
		}
		in.Take(n)
	}
	return 0, ErrProtocol
}

func responseHead(in *h1.Reader, r *h1.Response, method string) (int, error) {
	r.Reset()
	for {
		n, err := r.Parse(in.Bytes(), method)
		if !errors.Is(err, h1.ErrShort) {
			return n, err
		}
		if err := in.Fill(); err != nil {
			return 0, h1.NoEOF(err)
		}
	}
}

// Upgraded returns an error unless a 101 response switches to WebSocket, as requested. Any other protocol would give a tunnel to
// whoever asked.
func Upgraded(request handshake.Fields, r *h1.Response) error {
	if r.Minor == 0 || !h1.EqualFold(r.Upgrade, "websocket") { // which is nil unless Connection names it
		return ErrProtocol
	}
	return handshake.Verify(request, ValuesIn(r.Fields))
}

// ValuesIn returns the function that finds the values of a field by its name, in any case.
func ValuesIn(fields []h1.Field) handshake.Fields {
	return func(name string) []string { return Values(fields, strings.ToLower(name)) }
}

// OpensWebSocket reports whether a request asks for an upgrade to WebSocket (RFC 6455, 4.1).
func OpensWebSocket(r *h1.Request) bool {
	return r.Upgrade != nil && r.Minor > 0 && r.Body.Empty() && string(r.Method) == http.MethodGet && h1.EqualFold(r.Upgrade, "websocket")
}

// Idempotent reports whether a request of the method without a body may be sent again (RFC 9110, 9.2.2). PUT and DELETE are left
// out: their second answer can differ from the first.
func Idempotent(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	}
	return false
}

// Incoming is the body of a response over HTTP/1.x, as it arrives.
type Incoming struct {
	h1.Body
	in         *h1.Reader
	untilClose bool
	content    []byte // of Read: in the buffer, not read yet
	done       bool
}

// Begin begins the body behind the head of r, which was taken from in. The fields of r are no longer needed.
func (b *Incoming) Begin(in *h1.Reader, r *h1.Response) {
	b.Body.Begin(r.Body, true)
	b.Lenient = r.Lenient
	r.Trim()
	b.in, b.untilClose, b.content, b.done = in, r.Body.UntilClose, nil, false
}

// Sink is where the content of a response goes.
type Sink interface {
	// Put takes content, which it does not keep.
	Put(content []byte) error
	// Flush sends buffered content.
	Flush() error
	// Fill calls in.Fill.
	Fill(in *h1.Reader) error
}

// Copy copies the content to a sink, up to the end. It flushes before it waits for more, so that streams pass without delay. The
// trailers are valid until the next read from the server.
func (b *Incoming) Copy(to Sink) error {
	for {
		content, n, done, err := b.Next(b.in.Bytes())
		if err != nil {
			return err
		}
		if len(content) > 0 {
			if err := to.Put(content); err != nil {
				return err
			}
		}
		b.in.Take(n)
		if done {
			return nil
		}
		if n > 0 && len(b.in.Bytes()) > 0 {
			continue
		}
		if err := to.Flush(); err != nil {
			return err
		}
		if err := to.Fill(b.in); err != nil {
			return b.ended(err)
		}
	}
}

// ended returns nil if the end of the connection is that of the body.
func (b *Incoming) ended(err error) error {
	if b.untilClose && errors.Is(err, io.EOF) {
		return nil
	}
	return h1.NoEOF(err)
}

// Read returns content, then io.EOF after the end of the body. It calls wait before it blocks on the server.
func (b *Incoming) Read(p []byte, wait func() error) (int, error) {
	for len(b.content) == 0 {
		if b.done {
			return 0, io.EOF
		}
		content, n, done, err := b.Next(b.in.Bytes())
		if err != nil {
			return 0, err
		}
		b.in.Take(n)
		if b.content, b.done = content, done; n > 0 || done {
			continue
		}
		if err := wait(); err != nil {
			return 0, err
		}
		if err := b.in.Fill(); err != nil {
			if err := b.ended(err); err != nil {
				return 0, err
			}
			b.done = true
		}
	}
	n := copy(p, b.content)
	b.content = b.content[n:]
	return n, nil
}

// ServerReader reads from a server while its response is expected. It asks whether it is when a read deadline has passed. A deadline that an
// earlier exchange has set is left to pass if it is not near: setting one for each would cost more. Set Conn before its first use.
type ServerReader struct {
	Conn net.Conn
	// Now makes a read fail with [os.ErrDeadlineExceeded] when it would have to wait again.
	Now bool

	by    Expecter
	check time.Time     // when to ask by
	wait  time.Duration // between calls
	armed bool          // a read deadline is set that has not been seen to pass
	until time.Time     // that deadline
}

// Expecter waits for a response.
type Expecter interface {
	// Interrupted returns an error if the exchange was cut, as by a read deadline that another goroutine has set.
	Interrupted() error
	// Expected returns an error if the response is no longer expected, or else when to ask again, if last was the time until this call.
	Expected(last time.Duration) (next time.Duration, err error)
}

// Begin must be called before the reads of each exchange, and returns the time. first is the time until the first call of Expected. No
// deadline has passed when Begin returns: [socket.Direct.SendRequest] would not send.
func (r *ServerReader) Begin(by Expecter, first time.Duration) (now time.Time) {
	now = time.Now()
	r.by, r.check, r.wait = by, now.Add(first), first
	if !r.armed || r.until.After(r.check) || r.until.Sub(now) < first/4 {
		r.arm()
	}
	return now
}

// End drops the reference to the exchange.
func (r *ServerReader) End() { r.by = nil }

// Renew sets the deadline again if it has passed. Reads that do not wait would fail otherwise.
func (r *ServerReader) Renew() {
	if now := time.Now(); !r.armed || !now.Before(r.until) {
		r.check = now.Add(r.wait)
		r.arm()
	}
}

func (r *ServerReader) arm() {
	_ = r.Conn.SetReadDeadline(r.check)
	r.armed, r.until = true, r.check
}

// Read implements [io.Reader].
func (r *ServerReader) Read(b []byte) (int, error) {
	for {
		n, err := r.Conn.Read(b)
		if n > 0 || r.Now || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := r.by.Interrupted(); err != nil {
			return 0, err
		}
		if now := time.Now(); !now.Before(r.check) {
			if r.wait, err = r.by.Expected(r.wait); err != nil {
				return 0, err
			}
			r.check = now.Add(r.wait)
		}
		r.arm()
	}
}
