package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"golang.org/x/net/http2"
)

//lint:file-ignore SA1019 as for upstream_h2.go

// attempts is one request on its way over HTTP/2, which is sent once more where that is safe: the server said that it has
// not looked at the stream (it refused it, or its GOAWAY leaves it out), or it was never sent. The library knows that; it
// asks for a connection for each attempt.
type attempts struct {
	st   *stream
	ctx  context.Context
	up   *h2Upstream // of the attempt under way
	used bool        // up was asked for something
	n    int
	err  error // why there is no further attempt
}

const maxAttempts = 3

type attemptsKey struct{}

// errRepeat says that a request may be repeated but is not: its body has gone.
var errRepeat = errors.New("the upstream did not handle the request, and its body is not there any more")

// h2Attempts sends requests that carry their attempts in their context. Its connections are the pool's.
var h2Attempts = &http2.Transport{ConnPool: attemptPool{}, DisableCompression: true}

type attemptPool struct{}

// GetClientConn returns the connection for the next attempt, of which one stream is reserved.
func (attemptPool) GetClientConn(r *http.Request, _ string) (*http2.ClientConn, error) {
	a, ok := r.Context().Value(attemptsKey{}).(*attempts)
	if !ok {
		return nil, errInterrupted
	}
	return a.next()
}

// MarkDead does nothing: the pool hears of the end from the connection.
func (attemptPool) MarkDead(*http2.ClientConn) {}

func (a *attempts) next() (*http2.ClientConn, error) {
	if a.n++; a.n > 1 {
		a.leave()
		if a.err = a.another(); a.err != nil {
			return nil, a.err
		}
	}
	if a.err = a.st.goesTo(a.up.dial); a.err != nil {
		return nil, a.err
	}
	a.used = true
	return a.up.conn, nil
}

// another takes a further connection.
func (a *attempts) another() error {
	if a.n > maxAttempts {
		return errRepeat
	}
	up, err := a.st.s.upstream2(a.ctx, &a.st.ruling)
	if err != nil {
		return err
	}
	if up.h1 != nil { // the host has changed its mind: the client may try again
		up.h1.keep()
		return errRepeat
	}
	a.up = up.h2
	return nil
}

func (a *attempts) leave() {
	if a.up != nil {
		a.up.leave(a.used)
	}
	a.up, a.used = nil, false
}

// replayMax is how much of a request's body is kept until the answer begins, so that the request can be sent once more.
const replayMax = 64 << 10

// uploadBody counts a request's body and hands its trailers over at its end.
type uploadBody struct {
	st      *stream
	body    io.ReadCloser
	trailer http.Header

	mu      sync.Mutex
	kept    []byte // what was read
	gone    bool   // more was read than is kept, or the body was closed while it was read
	reading bool
	whole   bool // it was read to its end
	closed  bool
}

func (b *uploadBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	b.reading = true
	b.mu.Unlock()
	n, err := b.body.Read(p)
	b.st.uploaded.Add(int64(n))
	b.keep(p[:n], errors.Is(err, io.EOF))
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if leak := b.st.checkTrailers(); leak != nil {
		return n, leak
	}
	for name := range b.trailer {
		b.trailer[name] = b.st.r.Trailer[name]
	}
	return n, err
}

func (b *uploadBody) keep(p []byte, whole bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading, b.whole = false, whole
	if b.gone || len(b.kept)+len(p) > replayMax {
		b.kept, b.gone = nil, true
		return
	}
	b.kept = append(b.kept, p...)
}

// Close ends a read under way. What the client has not sent yet stays to be read by another attempt.
func (b *uploadBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if !b.reading {
		return nil // the library closes the stream's body when its handler returns
	}
	b.gone = true
	return b.body.Close()
}

// again returns the body for another attempt, or errRepeat.
func (b *uploadBody) again() (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return nil, errRepeat
	}
	next := &uploadBody{st: b.st, body: b.body, trailer: b.trailer}
	if len(b.kept) > 0 || b.whole {
		next.body = &replayed{kept: b.kept, whole: b.whole, rest: b.body}
	}
	b.st.uploaded.Add(-int64(len(b.kept)))
	return next, nil
}

// forget gives up what is kept: the answer has begun.
func (b *uploadBody) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept, b.gone = nil, true
}

// replayed reads what was read before and then the rest.
type replayed struct {
	kept  []byte
	whole bool
	rest  io.ReadCloser
}

func (r *replayed) Read(p []byte) (int, error) {
	if len(r.kept) > 0 {
		n := copy(p, r.kept)
		r.kept = r.kept[n:]
		return n, nil
	}
	if r.whole {
		return 0, io.EOF
	}
	return r.rest.Read(p)
}

func (r *replayed) Close() error { return r.rest.Close() }
