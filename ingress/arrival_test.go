package ingress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
	"boxgate/internal/socket/sockettest"
)

// Visitors who have connected before the gateway stops are answered, at whatever stage they are. Later ones are refused a
// connection.
func TestVisitorsWhoHaveConnectedAreAnswered(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(*testing.T, *fixture) (answer func() string){
		"plain": func(t *testing.T, f *fixture) func() string {
			c := f.dial(t, f.plain)
			return func() string { return askPlain(t, c) }
		},
		"before the handshake": func(t *testing.T, f *fixture) func() string {
			c := f.dial(t, f.https)
			return func() string { return askPlain(t, f.handshake(t, c, "one"+domain, "http/1.1")) }
		},
		"after it": func(t *testing.T, f *fixture) func() string {
			c := f.handshake(t, f.dial(t, f.https), "one"+domain, "http/1.1")
			return func() string { return askPlain(t, c) }
		},
		"HTTP/2": func(t *testing.T, f *fixture) func() string {
			v := f.frames(t, "one")
			return func() string { return v.answerOf(v.ask(true, to("GET", "one", "/")...)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, nil, func(g *Ingress) { g.arrival = time.Minute })
			f.expose("one", record(t).Server, Auth{Open: true})
			answer := connect(t, f)
			f.awaitHeld(t)
			stopped := make(chan error, 1)
			go func() { stopped <- f.Shutdown(t.Context()) }()
			f.awaitRefusal(t, f.plain)
			f.awaitRefusal(t, f.https)
			if got := answer(); got != "200 OK" && got != "200" {
				t.Errorf("answered with %s", got)
			}
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}

// answerOf returns the status of a stream's response, or the error.
func (v *frames) answerOf(id uint32) string {
	r := v.answer(id)
	return r.status()
}

// awaitHeld waits until a connection has been accepted.
func (f *fixture) awaitHeld(t *testing.T) {
	t.Helper()
	for held := 0; held == 0 && t.Context().Err() == nil; runtime.Gosched() {
		f.Ingress.mu.Lock()
		for _, l := range f.listeners {
			held += len(l.silent())
		}
		f.Ingress.mu.Unlock()
	}
}

// awaitRefusal waits until an address refuses connections.
func (f *fixture) awaitRefusal(t *testing.T, at string) {
	t.Helper()
	for t.Context().Err() == nil {
		c, err := net.Dial("tcp", at)
		if err == nil {
			_ = c.Close()
			continue
		}
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ECONNRESET) {
			t.Fatal(err)
		}
		return
	}
}

// Connections that are still in the queue when the gateway stops are answered as well: they were established.
func TestVisitorsWhoWaitToBeAcceptedAreAnswered(t *testing.T) {
	t.Parallel()
	f := startWith(t, nil, func(g *Ingress) { g.arrival = time.Minute })
	f.expose("one", record(t).Server, Auth{Open: true})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	late := sockettest.NewLate(socket.NewQueue(ln))
	served := make(chan error, 1)
	go func() { served <- f.ServePlain(late) }()
	<-late.Asked
	const count = 10
	var answers [count]chan string
	for i := range answers {
		c := f.dial(t, ln.Addr().String())
		answers[i] = make(chan string, 1)
		go func() { answers[i] <- askPlain(t, c) }()
	}
	if err := f.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	for _, answer := range answers {
		if got := <-answer; got != "200 OK" {
			t.Errorf("answered with %s", got)
		}
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// askPlain sends a request over a new connection, and returns the status of the response, or the error.
func askPlain(t *testing.T, c net.Conn) string {
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: one"+domain+"\r\n\r\n"); err != nil {
		return err.Error()
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	if !resp.Close {
		t.Error("the connection is said to stay open")
	}
	return resp.Status
}

// A silent visitor does not delay a stop, and one whose request was answered even less.
func TestSilentVisitorsDoNotHoldUpAStop(t *testing.T) {
	t.Parallel()
	const short = 50 * time.Millisecond
	for name, c := range map[string]struct {
		arrival time.Duration
		asked   bool
		connect func(*testing.T, *fixture)
	}{
		"plain":        {short, false, func(t *testing.T, f *fixture) { f.dial(t, f.plain) }},
		"no handshake": {short, false, func(t *testing.T, f *fixture) { f.dial(t, f.https) }},
		"no request":   {short, false, func(t *testing.T, f *fixture) { f.connectTo(t, "one"+domain) }},
		"HTTP/2":       {short, false, func(t *testing.T, f *fixture) { f.frames(t, "one") }},
		"asked before": {time.Hour, true, func(t *testing.T, f *fixture) {
			get(t, f.client(t, false), "https://one"+domain+"/", nil)
			get(t, f.client(t, true), "https://one"+domain+"/", nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, nil, func(g *Ingress) { g.arrival = c.arrival })
			f.expose("one", record(t).Server, Auth{Open: true})
			if c.connect(t, f); !c.asked {
				f.awaitHeld(t)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := f.Shutdown(ctx); err != nil || ctx.Err() != nil {
				t.Errorf("it took 30 s: %v", err)
			}
		})
	}
}
