package ingress

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// answer is the client's side of a request that net/http has read: it records the status and the bytes, and can be cut
// off whatever the client does.
type answer struct {
	http.ResponseWriter
	status int
	sent   atomic.Int64  // bytes of the response
	body   *countingBody // of the request, once it is forwarded
}

// reply implements [replier].
func (w *answer) reply(status int, fields [][2]string, body []byte) {
	if w.status != 0 {
		return
	}
	h := w.Header()
	for _, f := range fields {
		h.Add(f[0], f[1])
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// WriteHeader records the final status.
func (w *answer) WriteHeader(status int) {
	if status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *answer) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.sent.Add(int64(n))
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *answer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// abortWith makes the reads and writes of this request fail once it is cut: a client that neither reads nor writes
// would otherwise block the handler. stop must be called before the handler returns.
func (w *answer) abortWith(ctx context.Context) (stop func()) {
	return afterCut(ctx, func() {
		rc := http.NewResponseController(w.ResponseWriter)
		now := time.Now()
		_ = rc.SetReadDeadline(now)
		// Leave a moment to refuse a request that has no answer yet.
		_ = rc.SetWriteDeadline(now.Add(50 * time.Millisecond))
	})
}

// afterCut runs f when ctx ends because the request was cut. stop waits for f if it is running.
func afterCut(ctx context.Context, f func()) (stop func()) {
	ran := make(chan struct{})
	off := context.AfterFunc(ctx, func() {
		defer close(ran)
		if errors.Is(context.Cause(ctx), errCut) {
			f()
		}
	})
	return func() {
		if !off() {
			<-ran
		}
	}
}

// countingBody counts the bytes of a request body.
type countingBody struct {
	io.ReadCloser
	n atomic.Int64
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}
