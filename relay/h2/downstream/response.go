package downstream

import (
	"net/http"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// WriteHeader sends the head of a response: any number of interim ones (1xx), then the final one. Field names must be in
// lower case. end is set if the response consists of its head. The head may stay buffered until [Stream.Flush], the end of
// the response, or a full batch.
func (s *Stream) WriteHeader(status int, fields []hpack.HeaderField, end bool) error {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.awaitRoom(); err != nil {
		return err
	}
	if s.answered {
		return errEnded
	}
	s.answered = status >= 200
	s.last, s.batch = c.out.head(s.id, status, fields, end)
	s.localEnd(end)
	return nil
}

// Drain makes the connection accept no more requests. Its GOAWAY precedes everything sent on the stream later.
func (s *Stream) Drain() { s.c.onDrain() }

// Continue requests the body with an interim response, 100, unless the final one has begun. It never waits, so it may be called
// while another goroutine writes. Only the first call has an effect.
func (s *Stream) Continue() {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.sendErr() != nil || s.answered || s.continued {
		return
	}
	s.continued = true
	c.out.head(s.id, http.StatusContinue, nil, false)
	c.out.kick()
}

// Write sends a part of the body. It waits until the client's flow-control windows allow that.
func (s *Stream) Write(p []byte) (int, error) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.out.pass()
	sent := 0
	for sent < len(p) {
		switch {
		case s.sendErr() != nil:
			return sent, s.sendErr()
		case !s.answered:
			return sent, errEnded
		case s.send.Left() <= 0:
			c.out.await(s, nil)
			continue
		case c.out.send.Left() <= 0:
			c.out.await(s, &c.out.forWindow)
			continue
		case !c.out.room():
			c.out.await(s, &c.out.forRoom)
			continue
		}
		n := min(len(p)-sent, s.send.Left(), c.out.send.Left(), dataMax)
		s.sendLocked(p[sent : sent+n])
		sent += n
	}
	return sent, nil
}

// sendLocked sends a part of the body that fits into the batch and the windows. The caller holds mu.
func (s *Stream) sendLocked(p []byte) {
	out := &s.c.out
	s.last, s.batch = out.data(s.id, p, false)
	s.send.Take(len(p))
	out.send.Take(len(p))
	s.c.budget.Earn(earnedByData)
}

// WriteNow sends the final head of a response, if there is a status, and a part of the body. If it would have to wait, or the
// head or the part is out of order, it has no effect and reports false.
func (s *Stream) WriteNow(status int, fields []hpack.HeaderField, p []byte) bool {
	out := &s.c.out
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if !s.readyLocked() || s.answered == (status != 0) || len(p) > min(s.send.Left(), out.send.Left(), dataMax) {
		return false
	}
	if status != 0 {
		s.answered = true
		s.last, s.batch = out.head(s.id, status, fields, false)
	}
	if len(p) > 0 {
		s.sendLocked(p)
	}
	return true
}

// AnswerNow sends a whole response. If it would have to wait, or a response has begun, it has no effect and reports false.
func (s *Stream) AnswerNow(status int, fields []hpack.HeaderField, p []byte) bool {
	out := &s.c.out
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if !s.readyLocked() || s.answered || len(p) > min(s.send.Left(), out.send.Left(), dataMax) {
		return false
	}
	s.answered = true
	s.last, s.batch = out.head(s.id, status, fields, len(p) == 0)
	if len(p) > 0 {
		s.sendLocked(p)
		out.pending[s.last+4] |= byte(http2.FlagDataEndStream)
	}
	s.localEnd(true)
	return true
}

// Ready reports whether the stream can send without waiting, and no other stream is waiting to send.
func (s *Stream) Ready() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.readyLocked()
}

func (s *Stream) readyLocked() bool {
	out := &s.c.out
	return s.sendErr() == nil && out.room() && len(out.forRoom) == 0 && len(out.forWindow) == 0
}

// CloseNow ends a response without waiting, even if the batch is full: with its head, if there is a status, else with trailer
// fields, if there are any.
func (s *Stream) CloseNow(status int, fields []hpack.HeaderField) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if status == 0 {
		_ = s.closeLocked(fields) // the client may have left
		return
	}
	if s.sendErr() == nil && !s.answered {
		s.answered = true
		c.out.head(s.id, status, fields, true)
		s.localEnd(true)
	}
}

const earnedByData = 16 // WINDOW_UPDATE frames of a client that answers each 2 KiB with two

// Flush starts sending the written frames, and does not wait until they are sent.
func (s *Stream) Flush() error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.kick()
	return nil
}

// CloseWrite ends the response, with trailer fields if there are any.
func (s *Stream) CloseWrite(trailers []hpack.HeaderField) error {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(trailers) > 0 {
		if err := s.awaitRoom(); err != nil {
			return err
		}
	}
	return s.closeLocked(trailers)
}

func (s *Stream) closeLocked(trailers []hpack.HeaderField) error {
	c := s.c
	switch {
	case s.sendErr() != nil:
		return s.sendErr()
	case !s.answered:
		return errEnded
	case len(trailers) > 0:
		c.out.head(s.id, 0, trailers, true)
	case s.batch == c.out.batch: // its last frame is still in the batch
		c.out.pending[s.last+4] |= byte(http2.FlagDataEndStream) // the same bit in HEADERS
	default:
		c.out.data(s.id, nil, true)
	}
	s.localEnd(true)
	return nil
}

// Reset resets the stream unless it has ended.
func (s *Stream) Reset(code http2.ErrCode) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if !s.closed {
		s.c.resetStream(s.id, code)
		s.c.closeStream(s, errEnded)
	}
}

// sendErr returns the reason why no more can be sent, or nil.
func (s *Stream) sendErr() error {
	if s.err == nil && s.localEnded {
		return errEnded
	}
	return s.err
}

// awaitRoom waits until the client has read enough of the earlier frames.
func (s *Stream) awaitRoom() error {
	c := s.c
	defer c.out.pass()
	for s.sendErr() == nil && !c.out.room() {
		c.out.await(s, &c.out.forRoom)
	}
	return s.sendErr()
}

// localEnd notes whether the response has ended.
func (s *Stream) localEnd(end bool) {
	if !end {
		return
	}
	s.localEnded = true
	s.kick()
	if s.remoteEnded {
		s.c.closeStream(s, nil)
	}
}

// kick starts writing the batch, or lets it wait for others that the same goroutine appends to.
func (s *Stream) kick() {
	if out := &s.c.out; s.delay == nil || !out.room() {
		out.kick()
	} else {
		out.owe(s.delay)
	}
}

// waitWritable waits until more can be sent, no longer than the write limit.
func (s *Stream) waitWritable() {
	if s.writeLimit > 0 {
		defer time.AfterFunc(s.writeLimit, func() { s.Reset(http2.ErrCodeCancel) }).Stop()
	}
	s.writable.Wait()
}
