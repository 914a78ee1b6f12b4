package ui

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// inProcess is an [http.RoundTripper] that calls a handler of this process. The caller is the one in the context of a request, see
// [boxgate/ui/session.Store.With]. Responses are not buffered beyond maxBuffered, so a handler that writes a stream waits for its reader.
type inProcess struct {
	api  http.Handler
	from *http.Request // of the browser
}

// RoundTrip implements [http.RoundTripper]. The handler runs until the body of the response is closed or the context of
// the request ends.
func (t *inProcess) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	r := req.Clone(ctx)
	r.RequestURI, r.RemoteAddr, r.Host = req.URL.RequestURI(), t.from.RemoteAddr, "localhost"
	r.URL.Scheme, r.URL.Host = "", ""
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := &answer{header: http.Header{}, begun: make(chan struct{}), cancel: cancel}
	w.changed.L = &w.mu
	w.release = context.AfterFunc(ctx, func() { w.end(context.Cause(ctx)) })
	go func() {
		defer func() {
			if p := recover(); p != nil { // the API has logged it
				w.end(errBroken)
			}
		}()
		t.api.ServeHTTP(w, r)
		w.finish()
	}()
	select {
	case <-w.begun:
	case <-ctx.Done():
		cancel()
		return nil, context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status == 0 {
		cancel()
		return nil, w.ended
	}
	return &http.Response{
		Status: strconv.Itoa(w.status) + " " + http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: w, ContentLength: -1, Request: req,
	}, nil
}

// errBroken ends a response whose handler has failed.
var errBroken = errors.New("the admin API failed")

// maxBuffered is how many bytes of a response are buffered, unless a single write is larger.
const maxBuffered = 64 << 10

// answer is the response of a handler in this process: its [http.ResponseWriter] and the body for its reader.
type answer struct {
	header  http.Header
	begun   chan struct{} // closed with the status, or when the handler ends without one
	cancel  context.CancelFunc
	release func() bool

	mu      sync.Mutex
	changed sync.Cond
	status  int // 0: not yet
	sent    http.Header
	body    bytes.Buffer
	ended   error // nil: the handler runs; io.EOF: it has returned
}

// Header implements [http.ResponseWriter].
func (w *answer) Header() http.Header { return w.header }

// WriteHeader implements [http.ResponseWriter].
func (w *answer) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beginLocked(status)
}

func (w *answer) beginLocked(status int) {
	if w.status != 0 || w.ended != nil || status < http.StatusOK {
		return
	}
	w.status, w.sent = status, w.header.Clone()
	close(w.begun)
}

// Write implements [http.ResponseWriter]. It waits while the buffer is full.
func (w *answer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beginLocked(http.StatusOK)
	for w.body.Len() > 0 && w.body.Len()+len(p) > maxBuffered && w.ended == nil {
		w.changed.Wait()
	}
	if w.ended != nil {
		return 0, w.ended
	}
	w.changed.Broadcast()
	return w.body.Write(p)
}

// FlushError lets [http.ResponseController] flush the response, which is never held back.
func (w *answer) FlushError() error { return nil }

// finish marks the end of the response.
func (w *answer) finish() {
	w.mu.Lock()
	w.beginLocked(http.StatusOK)
	w.mu.Unlock()
	w.end(io.EOF)
}

// end ends the response, unless it has ended.
func (w *answer) end(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended != nil {
		return
	}
	w.ended = why
	if w.status == 0 {
		close(w.begun)
	}
	w.changed.Broadcast()
}

// Read implements the body of the response.
func (w *answer) Read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.body.Len() == 0 {
		if w.ended != nil {
			return 0, w.ended
		}
		w.changed.Wait()
	}
	w.changed.Broadcast()
	return w.body.Read(p)
}

// Close ends the request of the handler.
func (w *answer) Close() error {
	w.end(io.ErrClosedPipe)
	w.release()
	w.cancel()
	return nil
}
