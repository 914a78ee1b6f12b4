package http2

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"

	"golang.org/x/net/http2/hpack"

	"boxgate/internal/h1"
	"boxgate/proxy/contain"
	"boxgate/proxy/header"
)

// replayMax is how much of a request's body is kept for a retry until the response begins.
const replayMax = 64 << 10

// uploadSource is the body of a request, shared by successive attempts. Until the response begins, or more than
// replayMax has arrived, an abandoned attempt leaves its data, and a read in progress, to the next one.
type uploadSource struct {
	st      *stream
	body    io.ReadCloser
	trailer []string // the names of the trailer fields that may follow

	mu      sync.Mutex
	kept    []byte          // data read so far, unless gone
	gone    bool            // cannot be read from the beginning any more
	whole   bool            // EOF was reached
	drained bool            // an attempt has read it to EOF
	read    chan uploadRead // result of a read in progress that no attempt has taken, or nil
}

type uploadRead struct {
	data []byte
	err  error
}

// uploadBody is the body as read by one attempt. Only one goroutine reads at a time; Close may be called by another.
type uploadBody struct {
	source *uploadSource
	at     int // offset in source.kept
	once   sync.Once
	closed chan struct{}
}

func (st *stream) newUploadSource() *uploadSource {
	s := &uploadSource{st: st, body: watchedBody{st.r.Body, st}}
	for name := range st.r.Trailer {
		if f := h1.NewField(name, ""); !f.Forbidden() && !header.IsSet(name, st.ruling.Set) {
			s.trailer = append(s.trailer, name)
		}
	}
	slices.Sort(s.trailer)
	return s
}

// trailers returns the trailer fields, once the end was read.
func (s *uploadSource) trailers() (fields []hpack.HeaderField) {
	for _, name := range s.trailer {
		for _, v := range s.st.r.Trailer[name] {
			fields = append(fields, hpack.HeaderField{Name: lower(name), Value: v})
		}
	}
	return fields
}

func (s *uploadSource) attempt() *uploadBody {
	return &uploadBody{source: s, closed: make(chan struct{})}
}

// lost reports whether the body is not available for another attempt.
func (s *uploadSource) lost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// forget drops the kept data: the response has begun.
func (s *uploadSource) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone = true; s.drained {
		s.kept = nil
	}
}

// Read returns data kept from earlier attempts, then reads from the client.
func (b *uploadBody) Read(p []byte) (int, error) {
	select {
	case <-b.closed:
		return 0, http.ErrBodyReadAfterClose
	default:
	}
	s := b.source
	s.mu.Lock()
	if b.at < len(s.kept) {
		n := copy(p, s.kept[b.at:])
		b.at += n
		s.mu.Unlock()
		return n, nil
	}
	if s.whole {
		s.drained = true
		if s.gone {
			s.kept, b.at = nil, 0
		}
		s.mu.Unlock()
		return 0, s.end()
	}
	if s.gone && s.read == nil {
		s.kept, b.at = nil, 0
		s.mu.Unlock()
		n, err := s.body.Read(p)
		return n, s.finish(n, err)
	}
	result := s.begin(len(p))
	s.mu.Unlock()
	select {
	case r := <-result:
		return b.take(p, r)
	case <-b.closed:
		return 0, http.ErrBodyReadAfterClose
	}
}

// begin starts a read of up to size bytes in a goroutine, unless there is one; the caller must hold mu.
func (s *uploadSource) begin(size int) chan uploadRead {
	if s.read != nil {
		return s.read
	}
	result := make(chan uploadRead, 1)
	s.read = result
	buf := make([]byte, min(size, 16<<10))
	go func() { // ends at the latest when the handler returns and the stream ends
		r := uploadRead{err: contain.ErrFault}
		defer func() { result <- r }()
		defer contain.Panic(s.st.s.Core.Log, s.st.s.Box.ID, func() {})
		n, err := s.body.Read(buf)
		r = uploadRead{buf[:n], err}
	}()
	return result
}

// take returns the result of a read and keeps the data if there is room.
func (b *uploadBody) take(p []byte, r uploadRead) (int, error) {
	s := b.source
	s.mu.Lock()
	s.read = nil
	s.gone = s.gone || len(s.kept)+len(r.data) > replayMax || (r.err != nil && !errors.Is(r.err, io.EOF))
	n := copy(p, r.data)
	if !s.gone || n < len(r.data) {
		s.kept = append(s.kept, r.data...)
		b.at += n
	}
	s.whole = errors.Is(r.err, io.EOF)
	more := s.whole && b.at < len(s.kept)
	s.drained = s.whole && !more
	s.mu.Unlock()
	err := s.finish(len(r.data), r.err)
	if more && errors.Is(err, io.EOF) {
		err = nil // after the rest
	}
	return n, err
}

// finish counts received bytes and handles the end of the body.
func (s *uploadSource) finish(n int, err error) error {
	s.st.uploaded.Add(int64(n))
	if errors.Is(err, io.EOF) {
		return s.end()
	}
	return err
}

// end checks the trailers.
func (s *uploadSource) end() error {
	if leak := s.st.checkTrailers(); leak != nil {
		return leak
	}
	return io.EOF
}

// Close ends the attempt's reads. The client's body itself ends with the handler.
func (b *uploadBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	b.source.mu.Lock()
	defer b.source.mu.Unlock()
	if b.source.gone && b.source.read == nil {
		return b.source.body.Close() // which ends a read that was not left to a goroutine
	}
	return nil
}

// watchedBody is the body of a stream, searched for placeholders.
type watchedBody struct {
	io.ReadCloser
	st *stream
}

// Read fails where a token ends.
func (b watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if leak := b.st.watched(p[:n]); leak != nil {
		return 0, leak
	}
	return n, err
}

// watched searches the next chunk of the stream's body.
func (st *stream) watched(piece []byte) error {
	err := st.watch.Look(piece)
	if err != nil {
		st.leaked.Store(true)
	}
	return err
}
