package downstream

import (
	"slices"

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
	s.pending = nil
	s.c.launch(s)
	s.c.run.Done()
}

// Await sets the wait that ends with the stream's context. It replaces an earlier one; nil removes it. It reports false if the
// context has ended: then p is not called, and the caller must end the wait.
func (s *Stream) Await(p Pending) bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
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
	c.cfg.Start(s)
}
