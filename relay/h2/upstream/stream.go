package upstream

import (
	"context"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h2"
)

// Head is the head of a response.
type Head struct {
	Status int
	Fields []hpack.HeaderField // without pseudo-headers, in the order sent, names in lower case
	Length int64               // of the content; -1 if the head does not contain it
	End    bool                // the response ends with it
}

// Interim reports whether another head follows.
func (h *Head) Interim() bool { return h.Status < 200 }

// Stream is one request with its response. One goroutine may write while another reads. It must be closed.
type Stream struct {
	c    *Conn
	ctx  context.Context // of the request
	id   uint32
	news chan struct{} // signals arrived data to the reader; capacity 1; nil until Attend or Open
	told bool          // a notification is pending; guarded by c.mu
	room chan struct{} // wakes the goroutine that waits to append to the output; capacity 1; nil until needed

	// Guarded by c.mu.
	send     h2.SendWindow
	recv     h2.ReceiveWindow
	heads    []Head // unread
	one      [1]Head
	queued   int   // size of the interim ones
	interims int   // number received
	bodiless bool  // the response has no content
	begun    bool  // the final head has come
	again    bool  // the request can be repeated
	left     int64 // content still to come by the response's length, or -1
	body     content
	trailers []hpack.HeaderField
	ended    bool  // the server has ended the stream
	sent     bool  // we have ended the stream
	stopped  bool  // no more content may be sent
	err      error // why the stream failed; earlier data can still be read
	last     mark  // of its last DATA frame
	closed   bool
	watcher  Watcher         // called for further data; may be nil
	lists    [2]*usualFields // memory of the final head and of the trailers
}

// wait waits for something to read.
func (s *Stream) wait() error {
	select {
	case <-s.news:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// Await waits until data may have arrived, or late fires. It is for callers of [Stream.HeadArrived] and
// [Stream.ReadArrived].
func (s *Stream) Await(late <-chan time.Time) error {
	select {
	case <-s.news:
		return nil
	case <-late:
		return os.ErrDeadlineExceeded
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// tellLocked notifies the reader.
func (s *Stream) tellLocked() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// comeLocked records that data has arrived. The reader is notified when no more is buffered, as that may be for it as well.
func (s *Stream) comeLocked() {
	if !s.told {
		s.told = true
		s.c.told = append(s.c.told, s)
	}
}

// Head returns the next head of the response: interim ones, then the final one.
func (s *Stream) Head() (Head, error) {
	for first := true; ; first = false {
		h, ok, err := s.nextHead(first)
		if ok || err != nil {
			return h, err
		}
		if err := s.wait(); err != nil {
			return Head{}, err
		}
	}
}

// HeadArrived is [Stream.Head] without blocking: it reports whether there is a head.
func (s *Stream) HeadArrived() (Head, bool, error) { return s.nextHead(true) }

func (s *Stream) nextHead(flush bool) (Head, bool, error) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(s.heads) > 0:
		h := s.heads[0]
		s.heads[0] = Head{}
		if s.heads = s.heads[1:]; len(s.heads) == 0 {
			s.heads, s.queued = nil, 0
		}
		return h, true, nil
	case s.err != nil:
		return Head{}, false, s.err
	case flush && !s.sent:
		c.flushLocked()
	}
	return Head{}, false, nil
}

// Read reads the content of the response. It returns io.EOF at its end; only then are the trailers known.
func (s *Stream) Read(p []byte) (int, error) {
	for {
		n, err := s.ReadArrived(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		if err := s.wait(); err != nil {
			return 0, err
		}
	}
}

// ReadArrived is [Stream.Read] without blocking: it returns 0 and no error if no data has arrived.
func (s *Stream) ReadArrived(p []byte) (int, error) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := s.body.take(p); n > 0 {
		c.consumedLocked(s, n)
		return n, nil
	}
	if s.ended {
		return 0, io.EOF
	}
	return 0, s.err
}

// Trailers returns the trailer fields after Read has returned io.EOF.
func (s *Stream) Trailers() []hpack.HeaderField {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.trailers
}

// errStopped ends writing to a stream that needs no more content.
var errStopped = &h2.StreamError{Code: http2.ErrCodeNo, Why: "the server needs no more content"}

// waiters are streams that wait to append to the output.
type waiters []*Stream

// remove removes a stream and reports whether it was present.
func (w *waiters) remove(s *Stream) bool {
	i := slices.Index(*w, s)
	if i >= 0 {
		*w = slices.Delete(*w, i, i+1)
	}
	return i >= 0
}

// resume wakes all of them.
func (w *waiters) resume() {
	for _, s := range *w {
		s.room <- struct{}{}
	}
	clear(*w)
	*w = (*w)[:0]
}

// waitLocked adds the stream to w and waits, with the lock released, until it is resumed.
func (s *Stream) waitLocked(w *waiters) error {
	if s.room == nil {
		s.room = make(chan struct{}, 1)
	}
	*w = append(*w, s)
	s.c.flushLocked()
	s.c.mu.Unlock()
	var err error
	select {
	case <-s.room:
	case <-s.ctx.Done():
		err = s.ctx.Err()
	}
	s.c.mu.Lock()
	if err != nil && !w.remove(s) {
		<-s.room // it was resumed as well
	}
	return err
}

// goOnLocked wakes a waiting writer of the stream.
func (s *Stream) goOnLocked() {
	if s.c.crowd.remove(s) || s.c.stalled.remove(s) {
		s.room <- struct{}{}
	}
}

// Write sends content. It blocks on the server's windows, and while the server does not read.
func (s *Stream) Write(p []byte) (n int, err error) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.flushLocked()
	for len(p) > 0 {
		room, err := s.roomLocked()
		if err != nil {
			return n, err
		}
		m := min(len(p), room, h2.FrameMax)
		c.send.Take(m)
		s.send.Take(m)
		s.last = c.out.data(s.id, p[:m])
		n, p = n+m, p[m:]
	}
	return n, nil
}

// roomLocked waits until at least one byte may be sent.
func (s *Stream) roomLocked() (int, error) {
	for {
		if err := s.writableLocked(); err != nil {
			return 0, err
		}
		room, wait := min(s.c.send.Left(), s.send.Left()), &s.c.stalled
		if s.c.out.full() {
			wait = &s.c.crowd
		} else if room > 0 {
			return room, nil
		}
		if err := s.waitLocked(wait); err != nil {
			return 0, err
		}
	}
}

func (s *Stream) writableLocked() error {
	switch {
	case s.err != nil:
		return s.err
	case s.stopped || s.sent || s.closed:
		return errStopped
	}
	return nil
}

// CloseWrite ends the request's content, with trailer fields if there are any.
func (s *Stream) CloseWrite(trailers []hpack.HeaderField) error {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.writableLocked(); err != nil {
		return err
	}
	if len(trailers) == 0 {
		c.out.end(s.id, s.last)
	} else {
		if headSize(trailers) > c.settings.headSize {
			return errHeadSize
		}
		c.out.head(s.id, true, trailers)
	}
	s.sent = true
	if s.ended {
		c.removeLocked(s)
	}
	c.flushLocked()
	return nil
}

// Complete sends the whole content of the request and its trailer fields, if they are known and this does not block.
// Otherwise it sends nothing and returns false.
func (s *Stream) Complete(content []byte, trailers []hpack.HeaderField, known bool) bool {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(content)
	if !known || len(trailers) > 0 || n > min(c.send.Left(), s.send.Left(), h2.FrameMax) || c.out.full() || s.writableLocked() != nil {
		return false
	}
	c.send.Take(n)
	s.send.Take(n)
	c.out.end(s.id, c.out.data(s.id, content))
	s.sent = true
	c.flushLocked()
	return true
}

// StopWrite makes writes in progress and further ones fail: the server needs no more content.
func (s *Stream) StopWrite() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.stopped = true
	s.goOnLocked()
}

// Fail ends the stream with an error: the server gets a reset with CANCEL, and a reader gets the error.
func (s *Stream) Fail(err error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.resetLocked(http2.ErrCodeCancel, err)
}

// Close ends the use of the stream. It resets the stream unless the server has ended the response and has been sent the
// whole request.
func (s *Stream) Close() {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	code := http2.ErrCodeCancel
	if s.ended {
		code = http2.ErrCodeNo
	}
	s.resetLocked(code, errClosed)
	if n := s.body.drop(); n > 0 {
		c.consumedLocked(nil, n)
	}
	s.heads = nil
}

// resetLocked resets the stream if it has not ended.
func (s *Stream) resetLocked(code http2.ErrCode, err error) {
	if s.err != nil || s.c.streams[s.id] != s {
		return
	}
	_ = s.c.framer.WriteRSTStream(s.id, code)
	s.failLocked(err)
	s.c.removeLocked(s)
	s.c.flushLocked()
}

// failLocked fails operations in progress on the stream. Arrived data can still be read.
func (s *Stream) failLocked(err error) {
	if s.err == nil && (!s.ended || !s.sent) {
		s.err = err
	}
	if w := s.watcher; w != nil {
		s.watcher = nil
		go w.Failed(s)
	}
	s.tellLocked()
	s.goOnLocked()
}
