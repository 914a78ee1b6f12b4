package http2

import (
	"errors"
	"io"
	"net/http"
	"sync"

	"boxgate/proxy/contain"
)

// replayMax is how much of a request's body is kept until the answer begins, so that the request can be sent once more.
const replayMax = 64 << 10

// uploadSource is the body of a request as the client sends it, for one attempt after the other. Until the answer has
// begun, or more has come than is kept, an attempt that is given up leaves what it read, and a read under way, to the next.
type uploadSource struct {
	st      *stream
	body    io.ReadCloser
	trailer http.Header // to be filled in at the end

	mu      sync.Mutex
	kept    []byte          // what was read so far, unless gone
	gone    bool            // it cannot be read from its beginning any more
	whole   bool            // it has ended
	drained bool            // an attempt has read it to its end
	read    chan uploadRead // of a read under way that no attempt has taken the result of; else nil
}

type uploadRead struct {
	data []byte
	err  error
}

// uploadBody is what one attempt reads. One goroutine at a time reads; Close may come from another.
type uploadBody struct {
	source *uploadSource
	at     int // of source.kept
	once   sync.Once
	closed chan struct{}
}

func (s *uploadSource) attempt() *uploadBody {
	return &uploadBody{source: s, closed: make(chan struct{})}
}

// again returns the body for another attempt, or errRepeat.
func (s *uploadSource) again() (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, errRepeat
	}
	return s.attempt(), nil
}

// forget gives up what is kept: the answer has begun.
func (s *uploadSource) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone = true; s.drained {
		s.kept = nil
	}
}

// Read reads what earlier attempts have read, and then from the client.
func (b *uploadBody) Read(p []byte) (int, error) {
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

// begin has a goroutine read up to size bytes, unless one does; the caller holds mu.
func (s *uploadSource) begin(size int) chan uploadRead {
	if s.read != nil {
		return s.read
	}
	result := make(chan uploadRead, 1)
	s.read = result
	buf := make([]byte, min(size, 16<<10))
	go func() { // ends at the latest with the stream's handler, behind which the library ends the body
		r := uploadRead{err: contain.ErrFault}
		defer func() { result <- r }()
		defer contain.Panic(s.st.s.Core.Log, s.st.s.Box.ID, func() {})
		n, err := s.body.Read(buf)
		r = uploadRead{buf[:n], err}
	}()
	return result
}

// take hands over what was read and keeps it if there is room.
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
		err = nil // behind the rest
	}
	return n, err
}

// finish counts what came from the client and looks at what its end brings.
func (s *uploadSource) finish(n int, err error) error {
	s.st.uploaded.Add(int64(n))
	if errors.Is(err, io.EOF) {
		return s.end()
	}
	return err
}

// end hands the trailers over.
func (s *uploadSource) end() error {
	if leak := s.st.checkTrailers(); leak != nil {
		return leak
	}
	for name := range s.trailer {
		s.trailer[name] = s.st.r.Trailer[name]
	}
	return io.EOF
}

// Close ends the attempt's reading. The client's body itself ends with the handler.
func (b *uploadBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	b.source.mu.Lock()
	defer b.source.mu.Unlock()
	if b.source.gone && b.source.read == nil {
		return b.source.body.Close() // which ends a read that was not left to a goroutine
	}
	return nil
}

// watchedBody is the body of a stream as it is looked through.
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

// watched looks through the next piece of the stream's body.
func (st *stream) watched(piece []byte) error {
	err := st.watch.Look(piece)
	if err != nil {
		st.leaked.Store(true)
	}
	return err
}
