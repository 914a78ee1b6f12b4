package acceptor

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
)

// failing is a listener whose first Accept fails.
type failing struct {
	net.Listener
	failed atomic.Bool
}

func (f *failing) Accept() (net.Conn, error) {
	if !f.failed.Swap(true) {
		return nil, errors.New("out of descriptors")
	}
	return f.Listener.Accept()
}

// A loop survives a failed Accept, retires without its handlers, and waits for them as long as it may.
func TestLoopsRetire(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var loops Loops
	began, release, served := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		served <- loops.Serve(&failing{Listener: inner}, func(c net.Conn) {
			defer c.Close()
			close(began)
			<-release
		})
	}()
	client, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	<-began
	if loops.Retired() {
		t.Error("retired before Retire")
	}
	loops.Retire()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", inner.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("a retired loop still listens")
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := loops.Wait(over); !errors.Is(err, context.Canceled) {
		t.Errorf("a handler is still there: %v", err)
	}
	close(release)
	if err := loops.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	late, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := loops.Serve(late, func(net.Conn) { t.Error("accepted") }); err != nil {
		t.Error(err)
	}
	if err := late.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a retired loop leaves a listener open: %v", err)
	}
}
