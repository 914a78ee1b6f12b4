package downstream

import (
	"errors"
	"os"
	"time"

	"boxgate/relay/h2"
)

// sleepAfter is the time without a request after which a connection releases memory.
const sleepAfter = 250 * time.Millisecond

// errNoMemory ends a connection that cannot claim its memory again. A client may try its next request on another one.
var errNoMemory = errors.New("there is no memory to read the next request")

// Sleeper manages the memory that a connection claims. A connection without requests needs less of it. The goroutine that
// reads the connection calls its methods.
type Sleeper interface {
	// Sent returns how many bytes the client has sent so far, as TLS has read them.
	Sent() int64
	// Sleep releases the memory that is only needed to read. All data that TLS has decrypted was read.
	Sleep()
	// Wake claims it again, and reports whether that was possible.
	Wake() bool
}

// source reads from the client, only while the memory for that is claimed.
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

// awaitLull sets a read deadline, so that the read ends once the connection has had no request for a while. A deadline that it
// set before stays: setting one for each request would cost more. The caller holds mu.
func (c *conn) awaitLull() {
	if c.cfg.Sleeper != nil && c.ended == nil && c.lullAt.IsZero() && c.until.IsZero() {
		c.lullAt = time.Now().Add(sleepAfter)
		_ = c.net.SetReadDeadline(c.lullAt)
	}
}

// lulled is called when a read has timed out. It reports whether the deadline was that of awaitLull, and whether the connection
// has had no request for long enough and has no frames to send.
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

// refuseNext drains the connection, which has not read the next request. The client's data is discarded without TLS: there
// is no memory for a record.
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
