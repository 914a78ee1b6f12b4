package downstream

import (
	"errors"
	"io"
	"net/textproto"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/buffers"
)

// ErrUnread fails a read of a body after [Stream.CloseRead].
var ErrUnread = errors.New("the body of the request is closed")

// ErrLate fails a read of a body whose next part did not come in time ([Stream.Limit]).
var ErrLate = errors.New("the body of the request did not come in time")

// receive queues the content of a DATA frame. size is the length of its payload with padding. The caller holds the
// connection's mu.
func (s *Stream) receive(content []byte, size int, last bool) error {
	c := s.c
	s.received += int64(len(content))
	if s.Length >= 0 && (s.received > s.Length || last && s.received < s.Length) {
		c.consumed(size)
		return streamError(s.id, http2.ErrCodeProtocol) // 8.1.1
	}
	if !s.recv.Take(size) {
		c.consumed(size)
		return streamError(s.id, http2.ErrCodeFlowControl)
	}
	padding := size - len(content)
	if s.unread {
		padding = size
	} else {
		s.in.put(content)
	}
	if padding > 0 {
		c.consumed(padding)
		s.refill(size - len(content))
	}
	if last {
		s.remoteEnd()
	}
	s.readable.Signal()
	return nil
}

// remoteEnd notes that the client has ended the request.
func (s *Stream) remoteEnd() {
	s.remoteEnded = true
	if s.readable.Signal(); s.localEnded {
		s.c.closeStream(s, nil)
	}
}

const (
	trailersMax   = 16 << 10 // as HPACK counts the size of fields
	trailerFields = 128
)

// receiveTrailers handles a header block that is not the first of its stream.
func (s *Stream) receiveTrailers(b *block) error {
	switch {
	case b.fault != "":
		return streamError(s.id, http2.ErrCodeProtocol)
	case s.remoteEnded:
		return streamError(s.id, http2.ErrCodeStreamClosed)
	case b.size > trailersMax || len(b.fields) > trailerFields:
		return streamError(s.id, http2.ErrCodeEnhanceYourCalm)
	case !b.ended(), b.large, b.pseudo > 0, b.selfish, s.Length >= 0 && s.received != s.Length:
		return streamError(s.id, http2.ErrCodeProtocol)
	}
	for _, f := range b.fields {
		if !httpguts.ValidTrailerHeader(textproto.CanonicalMIMEHeaderKey(f.Name)) {
			return streamError(s.id, http2.ErrCodeProtocol)
		}
	}
	s.trailers = b.fields
	s.remoteEnd()
	return nil
}

// refill lets the client send n bytes more of the body.
func (s *Stream) refill(n int) {
	if s.remoteEnded || s.closed {
		return
	}
	if n = s.recv.Return(n); n > 0 {
		s.c.out.windowUpdate(s.id, n)
		s.c.out.kick()
	}
}

// Whole returns how much of the body has not been read, and whether all of it has arrived.
func (s *Stream) Whole() (int, bool) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.in.n, s.remoteEnded && s.err == nil
}

// Read reads the body. After io.EOF, [Stream.Trailers] returns the trailer fields.
func (s *Stream) Read(p []byte) (int, error) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case s.late:
			return 0, ErrLate
		case s.unread:
			return 0, ErrUnread
		case s.in.n > 0:
			n := s.in.take(p)
			c.consumed(n)
			s.refill(n)
			return n, nil
		case s.err != nil:
			return 0, s.err
		case s.remoteEnded:
			return 0, io.EOF
		case len(p) == 0:
			return 0, nil
		}
		s.waitReadable()
	}
}

// waitReadable waits for more of the body, no longer than the read limit.
func (s *Stream) waitReadable() {
	if s.readLimit > 0 {
		defer time.AfterFunc(s.readLimit, s.closeReadLate).Stop()
	}
	s.readable.Wait()
}

// closeReadLate closes a body if its next part did not arrive within the read limit.
func (s *Stream) closeReadLate() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.readLimit > 0 && !s.closed && !s.remoteEnded && s.in.n == 0 {
		s.late, s.unread = true, true
		s.readable.Broadcast()
	}
}

// Limit bounds each wait of a read and of a write. A read that waits longer for the next part of the body closes the body
// ([ErrLate]). A write that waits longer until it may send more resets the stream. 0 is no limit, the default.
func (s *Stream) Limit(read, write time.Duration) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.readLimit, s.writeLimit = read, write
}

// Arrived returns how much of the body can be read without waiting, and whether that is the rest of it.
func (s *Stream) Arrived() (n int, whole bool) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.in.n, s.remoteEnded && !s.unread && s.err == nil
}

// Trailers are the trailer fields of the request. They are known once Read has returned io.EOF.
func (s *Stream) Trailers() []hpack.HeaderField {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.trailers
}

// CloseRead drops the rest of the body and ends a read in progress.
func (s *Stream) CloseRead() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.unread = true
	s.drop()
	s.readable.Broadcast()
}

// drop discards the received bytes that were not read.
func (s *Stream) drop() {
	if n := s.in.drop(); n > 0 {
		s.c.consumed(n)
	}
}

// inbox is a queue of bytes. It holds memory only while it is not empty.
type inbox struct {
	chunks []*[]byte
	one    [1]*[]byte // memory of chunks, if there is one
	from   int        // bytes read of the first chunk
	to     int        // bytes written of the last chunk
	n      int        // bytes in all
}

var chunks = buffers.NewPool(16 << 10)

func (q *inbox) put(p []byte) {
	q.n += len(p)
	for len(p) > 0 {
		if q.chunks == nil {
			q.chunks = q.one[:0]
		}
		if len(q.chunks) == 0 || q.to == len(*q.chunks[len(q.chunks)-1]) {
			q.chunks, q.to = append(q.chunks, chunks.Get()), 0
		}
		n := copy((*q.chunks[len(q.chunks)-1])[q.to:], p)
		q.to += n
		p = p[n:]
	}
}

func (q *inbox) take(p []byte) (taken int) {
	for taken < len(p) && q.n > 0 {
		first := (*q.chunks[0])[q.from:]
		if len(q.chunks) == 1 {
			first = first[:q.to-q.from]
		}
		n := copy(p[taken:], first)
		taken += n
		q.n -= n
		if q.from += n; n == len(first) {
			chunks.Put(q.chunks[0])
			q.chunks, q.from = q.chunks[1:], 0
		}
	}
	if q.n == 0 {
		q.chunks = nil
	}
	return taken
}

func (q *inbox) drop() (n int) {
	for _, c := range q.chunks {
		chunks.Put(c)
	}
	n = q.n
	*q = inbox{}
	return n
}
