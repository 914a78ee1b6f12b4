package downstream

import (
	"errors"
	"os"
	"time"

	"boxgate/internal/h2"
)

// sleepAfter is how long a connection is without a request before it gives its memory back.
const sleepAfter = 250 * time.Millisecond

// errNoMemory ends a connection that cannot claim its memory again. A client may try its next request on another one.
var errNoMemory = errors.New("there is no memory to read the next request")

// Sleeper is the memory that a connection claims, less of which it needs while it has no requests. Its methods are called by the
// goroutine that reads the connection.
type Sleeper interface {
	// Sent returns how many bytes the client has sent so far, as TLS has read them.
	Sent() int64
	// Sleep gives back what is not needed until something is read again. All that TLS has decrypted was read.
	Sleep()
	// Wake claims it again, and reports whether that was possible.
	Wake() bool
}

// source is what the client sends. It is read only while the memory for it is claimed.
type source struct{ *conn }

// Read reads from the client. It returns [h2.ErrAgain] when a connection has been without a request for a while: its next call first
// waits for the client without the memory of the connection.
func (s source) Read(p []byte) (int, error) {
	c := s.conn
	if c.tired {
		c.tired = false
		if err := c.sleep(); err != nil {
			return 0, err
		}
	}
	if c.cfg.Sleeper == nil {
		return c.net.Read(p)
	}
	sent := c.cfg.Sleeper.Sent()
	n, err := c.net.Read(p)
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	quiet, due := c.lulled()
	if !due {
		return n, err
	}
	// Half a record is kept by TLS, half a frame by the caller.
	c.tired = quiet && c.between && c.cfg.Sleeper.Sent() == sent
	return 0, h2.ErrAgain
}

// sleep waits for the client.
func (c *conn) sleep() error {
	c.cfg.Sleeper.Sleep()
	if err := c.direct.Await(); err != nil {
		return err
	}
	if !c.cfg.Sleeper.Wake() {
		return errNoMemory
	}
	return nil
}

// awaitLull has the read end that waits for the client once the connection was without a request for a while. An earlier time is left to
// pass: setting one for each request would cost more. The caller holds mu.
func (c *conn) awaitLull() {
	if c.cfg.Sleeper != nil && c.ended == nil && c.lullAt.IsZero() && c.until.IsZero() {
		c.lullAt = time.Now().Add(sleepAfter)
		_ = c.net.SetReadDeadline(c.lullAt)
	}
}

// lulled is called when a read has taken too long. It reports whether that is due to awaitLull, and whether the connection has been
// without a request for long enough and has nothing to send.
func (c *conn) lulled() (quiet, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.ended != nil || c.lullAt.IsZero() || !c.until.IsZero() && !now.Before(c.until) {
		return false, false
	}
	c.lullAt = time.Time{}
	_ = c.net.SetReadDeadline(c.until)
	quiet = len(c.streams) == 0 && !c.out.writing && len(c.out.pending) == 0 && now.Sub(c.quiet) >= sleepAfter
	return quiet && c.until.IsZero(), true
}

// refuseNext tells the client that the connection takes no more requests, none of which it has read. What it has sent is dropped as it
// comes, without TLS: there is no memory for a record.
func (c *conn) refuseNext() {
	c.mu.Lock()
	c.drain()
	c.mu.Unlock()
	_ = c.direct.SetReadDeadline(time.Now().Add(goAwayTime))
	var dropped [512]byte
	for n := 0; n < lingerMax; {
		m, err := c.direct.Read(dropped[:])
		if n += m; err != nil {
			return
		}
	}
}
