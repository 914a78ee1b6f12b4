package upstream

import (
	"context"

	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h2"
)

// Watcher continues a stream when data has arrived, without a waiting goroutine. It is called once; for another call, it
// must watch again.
type Watcher interface {
	// Arrived is called by the reading goroutine of the connection after it has read all buffered data. It must not block
	// or panic. The batch is flushed after the calls for all streams.
	Arrived(s *Stream, b *h2.Batch)
	// Failed is called in a separate goroutine when the stream has failed.
	Failed(s *Stream)
}

// call is a pending call of a watcher.
type call struct {
	watcher Watcher
	stream  *Stream
}

// Begin is [Conn.Open] without blocking, for a request with complete content. It opens s, which must be new, on a reserved
// stream, and sets w as its watcher. The request is written at the end of the batch. If Begin would block, it has no effect and
// returns false; the stream remains reserved.
func (c *Conn) Begin(s *Stream, fields []hpack.HeaderField, content []byte, w Watcher, b *h2.Batch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(content)
	switch {
	case c.out.full():
		c.flushLocked()
		return false
	case c.usableLocked() != nil, len(c.crowd) > 0, len(c.streams) >= c.settings.streams:
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
	if c.out.full() {
		c.flushLocked()
	} else if !c.owed {
		c.owed = true
		b.Add(c)
	}
	return true
}

// Flush implements [h2.Flusher].
func (c *Conn) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed = false
	c.out.complete = true
	c.flushLocked()
}

// Watch sets the watcher of the stream. It returns false if there is data to read already, or there never will be.
func (s *Stream) Watch(w Watcher) bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if len(s.heads) > 0 || s.body.size > 0 || s.ended || s.err != nil {
		return false
	}
	s.watcher = w
	return true
}

// Unwatch removes the watcher. It returns false if there is none because it is being called, or was.
func (s *Stream) Unwatch() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	watched := s.watcher != nil
	s.watcher = nil
	return watched
}

// Attend makes a goroutine the reader of a watched stream: its reads may block from now on, until ctx ends.
func (s *Stream) Attend(ctx context.Context) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.ctx = ctx
	s.news = make(chan struct{}, 1)
}

// FinalHead returns the final head of the response if it is the next to read. Otherwise watch reports whether to watch for
// it; if not, an interim head has arrived, or the stream has failed.
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

// Next is the unread data of a response.
type Next struct {
	Content  []byte              // first part of the content; valid until [Stream.Took] or a read
	Last     bool                // the response ends with it
	Trailers []hpack.HeaderField // if Last
	Watch    bool                // more can be watched for
}

// Peek returns the arrived data.
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

// Forget releases the memory of a stream's heads and trailers, after [Stream.Close]. They must not be used afterwards.
func (s *Stream) Forget() {
	for i, list := range s.lists {
		if list != nil {
			*list = usualFields{}
			fieldLists.Put(list)
			s.lists[i] = nil
		}
	}
}

// Took consumes n bytes of the result of [Stream.Peek].
func (s *Stream) Took(n int) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.body.skip(n)
	s.c.consumedLocked(s, n)
}
