package h2c

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// app is an application that speaks HTTP/2 without TLS. It counts its connections.
type app struct {
	net.Listener
	mu    sync.Mutex
	conns int
	ended chan struct{} // receives a value for each connection that has ended
}

func newApp(t *testing.T, handler http.HandlerFunc) *app {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &app{Listener: ln, ended: make(chan struct{}, 100)}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			a.mu.Lock()
			a.conns++
			a.mu.Unlock()
			go func() {
				//lint:ignore SA1019 the connection is the test's own
				(&http2.Server{}).ServeConn(c, &http2.ServeConnOpts{Handler: handler})
				a.ended <- struct{}{}
			}()
		}
	}()
	return a
}

func (a *app) dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", a.Addr().String())
}

func (a *app) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conns
}

// stays is the gone function of a visitor who keeps waiting.
func stays() error { return nil }

func newPool() *Pool[string] { return NewPool[string](time.Minute, 4, nil, nil) }

// ask sends a request and returns the response.
func ask(t *testing.T, p *Pool[string], a *app, find bool) (net.Conn, *http.Response) {
	t.Helper()
	c, err := p.Open(t.Context(), "port", find, a.dial, stays)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET /x HTTP/1.1\r\nHost: a.test\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, res
}

// TestRequestsShareAConnection sends requests in turn and at the same time: one connection is the probe, and one carries all
// requests. It is closed when no request uses it.
func TestRequestsShareAConnection(t *testing.T) {
	t.Parallel()
	a := newApp(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host+r.URL.Path) })
	p := newPool()
	var open []net.Conn
	for range 3 {
		c, res := ask(t, p, a, true)
		if body, err := io.ReadAll(res.Body); string(body) != "a.test/x" || err != nil {
			t.Errorf("%q, %v", body, err)
		}
		open = append(open, c)
	}
	<-a.ended // the probe's
	if a.count() != 2 {
		t.Errorf("%d connections", a.count())
	}
	p.CloseIdle() // has no effect while the connection is used
	for _, c := range open {
		c.Close()
	}
	p.CloseIdle()
	<-a.ended
	empty(t, p)
}

// TestIdleConnectionsAreFew leaves more connections idle than are kept.
func TestIdleConnectionsAreFew(t *testing.T) {
	t.Parallel()
	a := newApp(t, func(w http.ResponseWriter, _ *http.Request) {})
	p := NewPool[string](time.Minute, 1, nil, nil)
	for _, key := range []string{"a", "b", "c"} {
		c, err := p.Open(t.Context(), key, false, a.dial, stays)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	<-a.ended
	<-a.ended
	if s := p.conns.Stats(); s.Idle != 1 || s.Ports != 1 {
		t.Errorf("%+v", s)
	}
}

// TestResetIsNoEnd: a response whose stream was reset is incomplete.
func TestResetIsNoEnd(t *testing.T) {
	t.Parallel()
	a := newApp(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	c, res := ask(t, newPool(), a, false)
	defer c.Close()
	if body, err := io.ReadAll(res.Body); !errors.Is(err, errReset) {
		t.Errorf("%q, %v", body, err)
	}
}

// TestAnswerBeforeTheEnd: an application that answers before it has read the request, and refuses the rest, does not make the
// request fail.
func TestAnswerBeforeTheEnd(t *testing.T) {
	t.Parallel()
	a := newApp(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	c, err := newPool().Open(t.Context(), "port", false, a.dial, stays)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, "POST /x HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 { // the reset arrives at some point during the loop
		if _, err := io.WriteString(c, "1\r\nx\r\n"); err != nil {
			t.Fatalf("after %d bytes: %v", i, err)
		}
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || res.StatusCode != http.StatusTeapot {
		t.Errorf("%v %v", res, err)
	}
}

// TestWhoSpeaksHTTP2 accepts only SETTINGS as the answer to a probe.
func TestWhoSpeaksHTTP2(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]bool{
		"\x00\x00\x00\x04\x00\x00\x00\x00\x00":                         true,
		"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64": true,
		"\x00\x00\x00\x04\x01\x00\x00\x00\x00":                         false, // an acknowledgement
		"\x00\x00\x00\x04\x00\x00\x00\x00\x01":                         false, // not on stream 0
		"\x00\x00\x05\x04\x00\x00\x00\x00\x00":                         false, // truncated settings
		"\x00\x00\x08\x06\x00\x00\x00\x00\x00":                         false, // a PING
		"HTTP/1.1 400 Bad Request\r\n\r\n":                             false,
		"220 mail ready\r\n":                                           false,
		"":                                                             false,
	} {
		here, there := net.Pipe()
		go func() {
			_, _ = io.ReadFull(there, make([]byte, len(http2.ClientPreface)+9))
			_, _ = io.Copy(there, strings.NewReader(said))
			there.Close()
		}()
		if got := speaks(t.Context(), here); got != want {
			t.Errorf("%q: %v", said, got)
		}
	}
	here, there := net.Pipe()
	defer there.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if speaks(ctx, here) {
		t.Error("one that says nothing")
	}
}
