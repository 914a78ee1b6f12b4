package downstream

import (
	"slices"

	"boxgate/internal/h2"
)

// Task is a request that has no goroutine while it can be served without waiting.
type Task interface {
	// Serve goes on in a goroutine, in which it may wait. The request has been served when it returns.
	Serve()
}

// Pending is a wait that ends with a stream's context.
type Pending interface {
	// Unwatch ends a task's wait without a goroutine, or a handler's for something else, and reports whether it was the former:
	// the task then goes on in a goroutine. It must neither wait nor call a method of a [Stream].
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

// Await sets the wait that ends with the stream's context, instead of an earlier one; nil removes it. It reports false if the context has
// ended: then p is not called, and the caller must end the wait.
func (s *Stream) Await(p Pending) bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.cancelled.Load() && p != nil {
		return false
	}
	s.pending = p
	return !s.cancelled.Load()
}

// cancelAll ends the contexts of all streams, as that of the connection has ended.
func (c *conn) cancelAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		s.cancelLocked(nil)
	}
}

// startWaiting starts requests that wait, as many as may run. The caller holds mu, which is not held while one is started.
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

// start has a request started. The caller holds mu.
func (c *conn) start(s *Stream) {
	c.run.Add(1) // until it is done, or resumed
	c.mu.Unlock()
	defer c.mu.Lock()
	c.cfg.Start(s)
}
