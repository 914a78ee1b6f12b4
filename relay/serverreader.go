package relay

import (
	"errors"
	"net"
	"os"
	"time"
)

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

// Begin must be called before the reads of each exchange. first is the time until the first call of Expected. No deadline has passed when
// Begin returns: [socket.Direct.SendRequest] would not send.
func (r *ServerReader) Begin(by Expecter, first time.Duration) {
	now := time.Now()
	r.by, r.check, r.wait = by, now.Add(first), first
	if !r.armed || r.until.After(r.check) || r.until.Sub(now) < first/4 {
		r.arm()
	}
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
