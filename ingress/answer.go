package ingress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// answer is the client's side of a request: it records the status and the bytes, and can be cut off whatever the client
// does.
type answer struct {
	http.ResponseWriter
	ctx            context.Context // of the request; set by abortWith
	status         int
	sent, received atomic.Int64 // to the client; from it after an upgrade
}

// WriteHeader records the final status.
func (w *answer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
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
	w.ctx = ctx
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

// Hijack returns the client's connection after an upgrade. Its bytes are counted, and it is closed when the request is
// cut.
func (w *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.status = http.StatusSwitchingProtocols
	afterCut(w.ctx, func() { _ = conn.Close() })
	return &countingConn{Conn: conn, w: w}, rw, nil
}

// countingConn counts the bytes of a connection that became a WebSocket.
type countingConn struct {
	net.Conn
	w *answer
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.w.received.Add(int64(n))
	return n, err
}

func (c *countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.w.sent.Add(int64(n))
	return n, err
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
