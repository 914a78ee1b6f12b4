package http1

import (
	"context"
	"net"
	"testing"

	"boxgate/internal/h1"
	"boxgate/proxy/exchange"
	"boxgate/proxy/live"
)

// TestFinishEndsTheUpload: a handler that panics leaves an upload that reads from the client. Its buffer goes back to the
// pool only when the upload has ended.
func TestFinishEndsTheUpload(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer far.Close()
	defer near.Close()
	h := &conn{s: &exchange.Session{Client: near, Live: &live.Conn{}}, ctx: context.Background(), in: h1.Reader{Source: near}, work: &work{}}
	done := make(chan struct{})
	h.upload.done = done
	go func() {
		defer close(done)
		_ = h.in.Fill()
	}()
	h.finish()
	select {
	case <-done:
	default:
		t.Error("the upload goes on")
	}
}
