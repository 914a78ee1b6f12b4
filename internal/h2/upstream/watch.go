package upstream

import (
	"context"

	"golang.org/x/net/http2/hpack"

	"boxgate/internal/h2"
)

// Watcher goes on with a stream once something has come on it, without a goroutine that waits. It is told once: to be
// told again, it has to watch again.
type Watcher interface {
	// Arrived is called by the goroutine that reads the connection, when all that had arrived has been read. It must not
	// wait for anything, nor panic.
	Arrived(s *Stream)
	// Failed is called in a goroutine of its own when the stream has failed.
	Failed(s *Stream)
}

// call is what a watcher is told.
type call struct {
	watcher Watcher
	stream  *Stream
}

// Begin is [Conn.Open] without waiting, for a request all of which is known: its content is what is given. It opens s, which
// must be new, on a stream that was reserved, and has w watch it. If that would take waiting it does nothing and reports
// false; the stream is still reserved then.
func (c *Conn) Begin(s *Stream, fields []hpack.HeaderField, content []byte, w Watcher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(content)
	switch {
	case c.usableLocked() != nil, c.out.full(), len(c.crowd) > 0, len(c.streams) >= c.settings.streams:
		return false
	case headSize(fields) > c.settings.headSize, n > min(c.settings.window, c.send.Left(), h2.FrameMax), n > 0 && len(c.stalled) > 0:
		return false
	}
	c.reserved--
	s.c, s.watcher = c, w
	c.beginLocked(s, fields, n == 0)
	if n > 0 {
		c.send.Take(n)
		s.send.Take(n)
		c.out.end(s.id, c.out.data(s.id, content))
		s.sent = true
	}
	c.flushLocked()
	return true
}

// Watch has w watch the stream. It reports false if there is something to read already, or never will be.
func (s *Stream) Watch(w Watcher) bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if len(s.heads) > 0 || s.body.size > 0 || s.ended || s.err != nil {
		return false
	}
	s.watcher = w
	return true
}

// Unwatch ends the watch, and reports whether there was one: else the watcher is being told, or was.
func (s *Stream) Unwatch() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	watched := s.watcher != nil
	s.watcher = nil
	return watched
}

// Attend makes a goroutine the reader of a stream that was watched: its reads may wait from now on, until ctx ends.
func (s *Stream) Attend(ctx context.Context) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.ctx = ctx
	s.news = make(chan struct{}, 1)
}

// FinalHead takes the final head of the response if nothing is to be read before it. Else it reports whether to watch for
// it; if not, there is an interim head, or the stream has failed.
func (s *Stream) FinalHead() (h Head, ok, watch bool) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	switch {
	case len(s.heads) == 0:
		return Head{}, false, s.err == nil
	case s.heads[0].Interim():
		return Head{}, false, false
	}
	h = s.heads[0]
	s.heads, s.queued = nil, 0
	return h, true, false
}

// Next is what has come of a response and has not been read.
type Next struct {
	Content  []byte              // the beginning of its content; valid until it is taken by [Stream.Took] or read
	Last     bool                // the response ends with it
	Trailers []hpack.HeaderField // if it does
	Watch    bool                // there will be more to watch for
}

// Peek returns what has come.
func (s *Stream) Peek() (n Next) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if len(s.body.pieces) > 0 {
		first := &s.body.pieces[0]
		n.Content = (*first.buf)[first.read:first.end]
	}
	if n.Last = s.ended && len(n.Content) == s.body.size; n.Last {
		n.Trailers = s.trailers
	}
	n.Watch = !s.ended && s.err == nil
	return n
}

// Forget gives back the memory of the heads and trailers of a stream, after [Stream.Close]. None of them may be used any more.
func (s *Stream) Forget() {
	for i, list := range s.lists {
		if list != nil {
			*list = usualFields{}
			fieldLists.Put(list)
			s.lists[i] = nil
		}
	}
}

// Took takes n bytes of what [Stream.Peek] returned.
func (s *Stream) Took(n int) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.body.skip(n)
	s.c.consumedLocked(s, n)
}
