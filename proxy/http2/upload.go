package http2

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2/hpack"

	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/recovery"
	"boxgate/relay/h2/upstream"
)

// upload sends the body of a request on a stream to the upstream, in a goroutine.
type upload struct {
	st      *stream
	to      *upstream.Stream
	body    *uploadBody
	proceed expectation   // of the client; may be nil
	done    chan struct{} // closed when it has ended
}

func (st *stream) upload(to *upstream.Stream, body *uploadBody) *upload {
	u := &upload{st: st, to: to, body: body, done: make(chan struct{})}
	if st.expects {
		u.proceed = make(expectation, 1)
	}
	go u.run()
	return u
}

func (u *upload) run() {
	defer close(u.done)
	err := recovery.ErrFault
	defer func() {
		if err != nil { // the upstream must not mistake the partial body for a complete one
			u.to.Fail(err)
		}
	}()
	defer recovery.Panic(u.st.s.Core.Log, u.st.s.Box.ID, func() {})
	if !u.proceed.await(u.body.closed) {
		err = nil
		return
	}
	err = u.send()
}

// expectation delays the upload of a client that waits for 100. It receives whether the upload begins. The nil expectation has no effect.
type expectation chan bool

// await waits until the server asks for the body or responds, or ExpectWait has passed. It reports whether the upload begins.
func (e expectation) await(ended <-chan struct{}) bool {
	if e == nil {
		return true
	}
	limit := time.NewTimer(origin.ExpectWait)
	defer limit.Stop()
	select {
	case wanted := <-e:
		return wanted
	case <-limit.C:
		return true
	case <-ended:
		return false
	}
}

// signal reports the server's response to the upload.
func (e expectation) signal(wanted bool) {
	select {
	case e <- wanted: // the first one counts
	default:
	}
}

// send sends the body with its trailers. It returns no error if the stream accepts no more: the reader of the response gets
// the reason.
func (u *upload) send() error {
	buf := bodyBuffers.Get()
	defer bodyBuffers.Put(buf)
	for {
		n, err := u.body.Read(*buf)
		if n > 0 {
			if _, failed := u.to.Write((*buf)[:n]); failed != nil {
				return nil
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return u.to.CloseWrite(u.body.source.trailers())
		case errors.Is(err, errUnread):
			return nil
		case err != nil:
			return err
		}
	}
}

// stop ends the upload: the server needs no more of it.
func (u *upload) stop() {
	if u != nil {
		u.to.StopWrite()
		u.body.close()
	}
}

// result is the response to an attempt: its final head, and its content.
type result struct {
	*upstream.Stream
	upstream.Head
	source *uploadSource // may be nil
	upload *upload       // nil without a body, or if all of it was sent immediately
}

// close ends the exchange, and waits for the end of the upload.
func (r *result) close() {
	r.Close()
	if r.upload != nil {
		r.upload.stop()
		<-r.upload.done
	}
}

// receive waits for the final head of a response, and forwards interim ones. A server that answers with an error or a
// redirect is assumed to need no more of the request.
func (st *stream) receive(r *result) (err error) {
	for {
		if r.Head, err = r.Stream.Head(); err != nil {
			return err
		}
		if !r.Interim() {
			break
		}
		st.passInterim(&r.Head, r.upload)
	}
	if r.source != nil {
		r.source.forget()
	}
	if r.upload != nil {
		r.upload.proceed.signal(r.Status <= 299)
		if r.Status > 299 {
			r.upload.stop()
		}
	}
	return nil
}

// passInterim forwards a 1xx response, except for 100: the gateway has sent one when the body was first read.
func (st *stream) passInterim(h *upstream.Head, u *upload) {
	if h.Status == http.StatusContinue {
		if u != nil {
			u.proceed.signal(true)
		}
		return
	}
	st.interim(h.Status, header.PassResponse(h.Fields, true))
}

// replayMax is the number of bytes of a request's body that are kept for a retry until the response begins.
const replayMax = 64 << 10

// uploadSource is the body of a request, shared by successive attempts. Until the response begins, or more than replayMax
// has arrived, an abandoned attempt leaves its data, and a read in progress, to the next one.
type uploadSource struct {
	st *stream

	mu      sync.Mutex
	kept    []byte          // data read so far, unless gone
	gone    bool            // can no longer be read from the beginning
	whole   bool            // EOF was reached
	drained bool            // an attempt has read it to EOF
	watched bool            // the buffered beginning was searched for placeholders
	leak    error           // a placeholder that was found
	read    chan uploadRead // result of a read in progress that no attempt has taken, or nil
}

type uploadRead struct {
	data []byte
	err  error
}

// uploadBody is the body as read by one attempt. Only one goroutine reads at a time; close may be called by another.
type uploadBody struct {
	source *uploadSource
	at     int // offset in source.kept
	once   sync.Once
	closed chan struct{}
}

// newUploadSource returns the body of the request. If all of it has arrived, it is read immediately.
func (st *stream) newUploadSource() *uploadSource {
	s := &uploadSource{st: st}
	n, whole := st.client.Whole()
	if !whole || st.expects || n > replayMax {
		return s
	}
	s.kept, s.whole = st.scratch(n), true
	if _, err := io.ReadFull(st.client, s.kept); err != nil { // the stream was reset
		s.kept, s.whole = nil, false
		return s
	}
	st.uploaded.Add(int64(n))
	st.x.CaptureUpload(s.kept)
	return s
}

// scratch returns memory for a small body, reused by other requests.
func (st *stream) scratch(n int) []byte {
	if n > scratchMax {
		return make([]byte, n)
	}
	if st.small == nil {
		st.small = make([]byte, scratchMax)
	}
	return st.small[:n:n]
}

const scratchMax = 1 << 10

// inspect searches a body that is complete from the beginning, and its trailers, for placeholders.
func (s *uploadSource) inspect() error {
	if s.whole && !s.watched {
		s.watched = true
		if s.leak = s.st.watched(s.kept); s.leak == nil {
			s.leak = s.st.checkEnd()
		}
	}
	return s.leak
}

// known returns the whole body with its trailers, if it is complete.
func (s *uploadSource) known() (content []byte, trailers []hpack.HeaderField, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.whole {
		return nil, nil, false
	}
	return s.kept, s.trailers(), true
}

// trailers returns the trailer fields after the end was read.
func (s *uploadSource) trailers() []hpack.HeaderField {
	return header.PassTrailers(s.st.client.Trailers(), s.st.decision.Set)
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
		return 0, errUnread
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
		return 0, s.endBody()
	}
	if s.gone && s.read == nil {
		s.kept, b.at = nil, 0
		s.mu.Unlock()
		n, err := s.readClient(p)
		return n, s.finish(n, err)
	}
	result := s.begin(len(p))
	s.mu.Unlock()
	select {
	case r := <-result:
		return b.finishRead(p, r)
	case <-b.closed:
		return 0, errUnread
	}
}

// begin starts a read of up to size bytes in a goroutine, unless one is running; the caller must hold mu.
func (s *uploadSource) begin(size int) chan uploadRead {
	if s.read != nil {
		return s.read
	}
	result := make(chan uploadRead, 1)
	s.read, s.st.shared = result, true
	buf := make([]byte, min(size, 16<<10))
	go func() { // ends at the latest when the handler returns and the stream ends
		r := uploadRead{err: recovery.ErrFault}
		defer func() { result <- r }()
		defer recovery.Panic(s.st.s.Core.Log, s.st.s.Box.ID, func() {})
		n, err := s.readClient(buf)
		r = uploadRead{buf[:n], err}
	}()
	return result
}

// finishRead returns the result of a read, and keeps the data if the limit allows.
func (b *uploadBody) finishRead(p []byte, r uploadRead) (int, error) {
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
		return s.endBody()
	}
	return err
}

// endBody checks the end of the body and the trailers.
func (s *uploadSource) endBody() error {
	if leak := s.st.checkEnd(); leak != nil {
		return leak
	}
	return io.EOF
}

// close ends the attempt's reads. The client's body itself ends with the handler.
func (b *uploadBody) close() {
	b.once.Do(func() { close(b.closed) })
	b.source.mu.Lock()
	defer b.source.mu.Unlock()
	if b.source.gone && b.source.read == nil {
		b.source.st.client.CloseRead() // that ends a read that was not left to a goroutine
	}
}

// errUnread fails the reads of an attempt that has ended.
var errUnread = errors.New("the attempt has ended")

// readClient reads from the client, and fails at the end of a placeholder.
func (s *uploadSource) readClient(p []byte) (int, error) {
	n, err := s.st.Read(p)
	if leak := s.st.watched(p[:n]); leak != nil {
		return 0, leak
	}
	return n, err
}

// watched searches the next chunk of the stream's body.
func (st *stream) watched(piece []byte) error { return st.noted(st.watch.Look(piece)) }
