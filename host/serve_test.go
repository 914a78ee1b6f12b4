package host

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"boxgate/host/authlimit"
	"boxgate/internal/socket"
	"boxgate/internal/socket/sockettest"
)

// TestLoopsStoppedEarlyDoNotBegin: loops that were stopped before they were started do not run.
func TestLoopsStoppedEarlyDoNotBegin(t *testing.T) {
	t.Parallel()
	l := newLoops()
	l.stop()
	ctx, cancel := l.context(t.Context())
	defer cancel()
	if ctx.Err() == nil {
		t.Error("a loop begins although the loops were stopped")
	}
}

// A gateway that has not recovered its boxes refuses to serve.
func TestServeWithoutRecoveryIsRefused(t *testing.T) {
	t.Parallel()
	h := &Host{parts: &parts{log: zap.NewNop()}, health: &health{}}
	if err := h.Serve(t.Context()); !errors.Is(err, errNotRecovered) {
		t.Errorf("%v", err)
	}
	if err := h.health.Ready(t.Context()); err == nil {
		t.Error("it reported that it is ready")
	}
}

// A client that connected before the gateway stops gets its response. A connection without a request does not keep the
// gateway from stopping.
func TestWhoHasConnectedIsAnswered(t *testing.T) {
	var a arrivals
	accepted := make(chan struct{}, 2)
	s := &http.Server{
		Handler:     http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context { accepted <- struct{}{}; return ctx },
	}
	a.track(s)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- a.serve(s.Serve, ln) }()
	var clients [2]net.Conn
	for i := range clients {
		if clients[i], err = net.Dial("tcp", ln.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer clients[i].Close()
		<-accepted
	}
	ended := make(chan error, 1)
	go func() {
		a.await(t.Context())
		ended <- s.Shutdown(t.Context())
	}()
	<-served // the listener is closed: stopping has begun
	if _, err := clients[0].Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(clients[0]), nil)
	if err != nil {
		t.Fatal("a client that had connected got no answer:", err)
	}
	_ = r.Body.Close()
	_ = clients[1].Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A connection that is still in the accept queue when the gateway stops gets its response too.
func TestWhoWaitsToBeAcceptedIsAnswered(t *testing.T) {
	var a arrivals
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	a.track(s)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	late := sockettest.NewLate(authlimit.New(socket.NewQueue(ln), 8))
	served := make(chan error, 1)
	go func() { served <- a.serve(s.Serve, late) }()
	<-late.Asked
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		a.await(t.Context())
		ended <- s.Shutdown(t.Context())
	}()
	r, err := http.ReadResponse(bufio.NewReader(client), nil)
	if err != nil {
		t.Fatal("a client that had connected got no answer:", err)
	}
	_ = r.Body.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// A client that sends nothing delays the gateway's stop only briefly.
func TestWhoSaysNothingIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a arrivals
		c, other := net.Pipe()
		defer other.Close()
		defer c.Close()
		a.add(c)
		began := time.Now()
		if a.await(t.Context()); time.Since(began) != arrivalTime {
			t.Errorf("await took %v", time.Since(began))
		}
	})
}
