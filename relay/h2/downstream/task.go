package downstream

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"boxgate/relay/h2"
)

// Task is a request that has no goroutine while it can be served without waiting.
type Task interface {
	// Serve continues the request in a goroutine, and may wait. It returns when the request has been served.
	Serve()
}

// Pending is a wait that ends with a stream's context.
type Pending interface {
	// Unwatch ends the wait, and reports whether it was that of a task without a goroutine: the task then continues in a
	// goroutine. It must neither wait nor call a method of a [Stream].
	Unwatch() bool
}

// Take assigns the stream to a task. Config.Start calls it first. Afterwards, any goroutine must call one of [Stream.Done] and
// [Stream.Resume].
func (s *Stream) Take(t Task) { s.task = t }

// Delay makes the end of the response and [Stream.Flush] wait for the end of a batch, until the next call of [Stream.Done],
// [Stream.Resume] or [Stream.Await]. The goroutine that flushes the batch calls it, and no other writes to the stream meanwhile.
func (s *Stream) Delay(b *h2.Batch) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.delay = b
}

// Done ends a stream whose request the task has served without a goroutine.
func (s *Stream) Done() {
	c := s.c
	defer c.run.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finish(s)
	c.beginWaiting()
}

// Resume continues the task in a goroutine.
func (s *Stream) Resume() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.resumeLocked()
}

func (s *Stream) resumeLocked() {
	s.pending, s.delay = nil, nil
	s.c.launch(s)
	s.c.run.Done()
}

// Await sets the wait that ends with the stream's context. It replaces an earlier one; nil removes it. It reports false if the
// context has ended: then p is not called, and the caller must end the wait.
func (s *Stream) Await(p Pending) bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.delay = nil
	if s.cancelled.Load() && p != nil {
		return false
	}
	s.pending = p
	return !s.cancelled.Load()
}

// cancelAll ends the contexts of all streams after that of the connection.
func (c *conn) cancelAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		s.cancelLocked(nil)
	}
}

// startWaiting starts waiting requests, as many as may run. The caller holds mu, which is released while a request is started.
func (c *conn) startWaiting() {
	c.starting = true
	for len(c.waiting) > 0 && c.running < h2.Streams && c.ended == nil {
		s := c.waiting[0]
		c.waiting = slices.Delete(c.waiting, 0, 1)
		s.begun = true
		c.running++
		c.start(s)
	}
	c.starting = false
}

// start passes a request to Config.Start. The caller holds mu.
func (c *conn) start(s *Stream) {
	c.run.Add(1) // until it is done, or resumed
	c.mu.Unlock()
	defer c.mu.Lock()
	c.cfg.Start(s, &c.begun)
}

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

// streamContext is a stream as a context. Most requests never wait on their context, so a context of the standard library is
// made only when one is needed.
type streamContext Stream

// Context ends when the client has reset the stream, the connection has ended, the handler has returned, or with
// [Stream.Cancel].
func (s *Stream) Context() context.Context { return (*streamContext)(s) }

// Deadline implements [context.Context].
func (x *streamContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements [context.Context].
func (x *streamContext) Done() <-chan struct{} { return x.made().Done() }

// Value implements [context.Context]. The standard library calls it to find its own context.
func (x *streamContext) Value(key any) any { return x.made().Value(key) }

// Err implements [context.Context].
func (x *streamContext) Err() error {
	if x.cancelled.Load() {
		return context.Canceled
	}
	return x.c.ctx.Err()
}

// made returns the stream's context of the standard library.
func (x *streamContext) made() context.Context {
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	if x.ctx == nil {
		x.ctx, x.cancel = context.WithCancelCause(x.c.ctx)
		if x.cancelled.Load() {
			x.cancel(x.cause)
		}
	}
	return x.ctx
}

// Cancel ends the stream's context with a cause, as [context.Cause] returns it. A nil cause means [context.Canceled]. If the
// context has ended before, its cause does not change.
func (s *Stream) Cancel(why error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.cancelLocked(why)
}

// Cancelled reports whether the stream's context has ended.
func (s *Stream) Cancelled() bool { return s.cancelled.Load() }

func (s *Stream) cancelLocked(why error) {
	if !s.cancelled.Load() {
		s.cause = why
		s.cancelled.Store(true)
	}
	if s.cancel != nil {
		s.cancel(s.cause)
	}
	if s.pending != nil && s.pending.Unwatch() {
		s.resumeLocked()
	}
}
