package downstream

import (
	"context"
	"slices"

	"boxgate/internal/h2"
)

// Task is a request that is served without a goroutine of its own for as long as that takes no waiting.
type Task interface {
	// Serve goes on in a goroutine, in which it may wait. The request has been served when it returns.
	Serve()
}

// Pending is what a task waits for without a goroutine.
type Pending interface {
	// Unwatch ends the wait, and reports whether there was one. It must neither wait nor call a method of a [Stream].
	Unwatch() bool
}

// Take leaves the stream to a task. Config.Start calls it before anything else; then one of [Stream.Done] and [Stream.Resume]
// must follow, by any goroutine.
func (s *Stream) Take(t Task) { s.task = t }

// Done ends a stream whose request the task has served without a goroutine.
func (s *Stream) Done() {
	c := s.c
	defer c.run.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finish(s)
	c.beginWaiting()
}

// Resume has the task go on in a goroutine.
func (s *Stream) Resume() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.resumeLocked()
}

func (s *Stream) resumeLocked() {
	s.pending = nil
	s.c.launch(s)
	s.c.run.Done()
}

// Await notes what the task has begun to wait for, and reports whether it may: the task goes on in a goroutine if the stream's
// context ends meanwhile. If it has ended already, what the task waits for has to be ended by the caller.
func (s *Stream) Await(p Pending) bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.cancelled {
		return false
	}
	s.pending = p
	return true
}

// Context ends when the client has reset the stream, the connection has ended or the handler has returned.
func (s *Stream) Context() context.Context {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.ctx == nil {
		s.ctx, s.cancel = context.WithCancel(s.c.ctx)
		if s.cancelled {
			s.cancel()
		}
	}
	return s.ctx
}

// Cancel ends the stream's context.
func (s *Stream) Cancel() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.cancelLocked()
}

// Cancelled reports whether the stream's context has ended.
func (s *Stream) Cancelled() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.cancelled
}

func (s *Stream) cancelLocked() {
	s.cancelled = true
	if s.cancel != nil {
		s.cancel()
	}
	if s.pending != nil && s.pending.Unwatch() {
		s.resumeLocked()
	}
}

// cancelAll ends the contexts of all streams, as that of the connection has ended.
func (c *conn) cancelAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		s.cancelLocked()
	}
}

// startWaiting starts requests that wait, as many as may run. The caller holds mu, which is not held while one is started.
func (c *conn) startWaiting() {
	for len(c.waiting) > 0 && c.running < h2.Streams && c.ended == nil {
		s := c.waiting[0]
		c.waiting = slices.Delete(c.waiting, 0, 1)
		s.begun = true
		c.running++
		c.start(s)
	}
}

// start has a request started. The caller holds mu.
func (c *conn) start(s *Stream) {
	c.run.Add(1) // until it is done, or resumed
	c.mu.Unlock()
	defer c.mu.Lock()
	c.cfg.Start(s)
}
