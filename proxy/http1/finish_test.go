package http1

import (
	"context"
	"net"
	"testing"

	"boxgate/proxy/exchange"
	"boxgate/proxy/live"
	"boxgate/relay"
	"boxgate/relay/h1"
)

// TestFinishEndsTheUpload: a handler that panics leaves an upload that reads from the client. Its buffer goes back to the
// pool only when the upload has ended.
func TestFinishEndsTheUpload(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer far.Close()
	defer near.Close()
	h := &conn{
		Client: relay.Client{Conn: near, In: h1.Reader{Source: near}}, s: &exchange.Session{Live: &live.Conn{}}, ctx: context.Background(), work: &work{},
	}
	reading := &reader{body: body{h: h}, begun: make(chan struct{}), ended: make(chan struct{})}
	h.Upload.Start(reading, nowhere{})
	<-reading.begun
	h.finish()
	select {
	case <-reading.ended:
	default:
		t.Error("the upload goes on")
	}
}

// reader is a body of which nothing comes.
type reader struct {
	body
	begun, ended chan struct{}
}

func (r *reader) More(*relay.Output) ([]byte, int, bool, error) {
	close(r.begun)
	defer close(r.ended)
	return nil, 0, false, r.h.In.Fill()
}

// nowhere is a server that takes everything.
type nowhere struct{}

func (nowhere) Write([]byte) error { return nil }
func (nowhere) Abort()             {}
