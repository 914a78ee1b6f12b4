package ingress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"boxgate/audit"
	"boxgate/internal/handshake"
	"boxgate/relay"
)

const firstAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst"

// primed returns an HTTP/2 visitor whose first request to "one" has left an idle connection to the box. box gets every further
// request on that connection. On other connections, the box answers "fresh".
func (f *fixture) primed(t *testing.T, box func(net.Conn, *bufio.Reader, *http.Request)) *frames {
	t.Helper()
	first := make(chan struct{}, 1)
	first <- struct{}{}
	f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
		var kept bool
		select {
		case <-first:
			kept = true
		default:
		}
		for n := 0; ; n++ {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			switch {
			case !kept:
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfresh")
			case n == 0:
				_, _ = io.WriteString(c, firstAnswer)
			default:
				box(c, in, r)
			}
		}
	})
	v := f.frames(t, "one")
	if r := v.answer(v.ask(true, to("GET", "one", "/first")...)); r.body != "first" {
		t.Fatalf("%+v", r)
	}
	f.event(t, func(e audit.Event) bool { return e.Path == "/first" }) // the connection is idle
	return v
}

// TestAnswersOnKeptConnections: a visitor over HTTP/2 whose request uses an idle connection gets the whole response, in
// whatever parts it arrives.
func TestAnswersOnKeptConnections(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("large", 1<<16)
	for name, c := range map[string]struct {
		method string
		parts  []string // each sent when the previous one has been acknowledged
		want   string
	}{
		"length":           {"GET", []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"}, "200 hi"},
		"no length":        {"GET", []string{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}, "200 "},
		"chunk":            {"GET", []string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"}, "200 hi"},
		"chunks":           {"GET", []string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n4\r\n you\r\n0\r\n\r\n", ""}, "200 hi you"},
		"trailers":         {"GET", []string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 7\r\n\r\n"}, "200 hi x-sum=7"},
		"HEAD":             {"HEAD", []string{"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"}, "200 "},
		"304":              {"GET", []string{"HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n"}, "304 "},
		"interim":          {"GET", []string{"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"}, "200 hi"},
		"head in parts":    {"GET", []string{"HTTP/1.1 20", "0 OK\r\nContent-Length: 2\r\n\r\nhi"}, "200 hi"},
		"body in parts":    {"GET", []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "h", "i"}, "200 hi"},
		"large":            {"GET", []string{fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(large), large)}, "200 " + large},
		"POST":             {"POST", []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"}, "200 hi"},
		"until the end":    {"GET", []string{"HTTP/1.1 200 OK\r\n\r\nhi", "end"}, "200 hi"},
		"short":            {"GET", []string{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", "end"}, "reset INTERNAL_ERROR after 200"},
		"not HTTP":         {"GET", []string{"hello, this is not HTTP"}, "502"},
		"two lengths":      {"GET", []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi"}, "502"},
		"a switch":         {"GET", []string{"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"}, "502"},
		"end, GET again":   {"GET", []string{"end"}, "200 fresh"},
		"end, POST failed": {"POST", []string{"end"}, "502"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t, nil)
			v := f.primed(t, func(box net.Conn, _ *bufio.Reader, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				for _, part := range c.parts {
					if part == "end" {
						_ = box.Close()
						return
					}
					_, _ = io.WriteString(box, part)
					f.delivered(t, box)
				}
			})
			_ = v.WriteWindowUpdate(0, 1<<20)
			_ = v.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			id := v.ask(c.method != "POST", to(c.method, "one", "/second")...)
			if c.method == "POST" {
				_ = v.WriteData(id, true, []byte("content"))
			}
			r := v.answer(id)
			got := r.status()
			if !r.ended && len(r.heads) > 0 {
				got = "reset " + r.reset.String() + " after " + got
			} else if got != "502" {
				got = r.text()
			}
			if got != c.want {
				t.Errorf("%.100q instead of %.100q", got, c.want)
			}
		})
	}
}

// text returns the status, the body and the trailers.
func (r *response) text() string {
	text := r.heads[0].PseudoValue("status") + " " + r.body
	for _, h := range r.heads[1:] {
		if h.PseudoValue("status") != "" {
			text = h.PseudoValue("status") + " " + r.body
			continue
		}
		for _, f := range h.Fields {
			text += " " + f.Name + "=" + f.Value
		}
	}
	return text
}

// TestCutsOnKeptConnections: a request that waits for a box without a goroutine ends when its URL is revoked, its visitor
// resets it or disconnects, and when the gateway stops. The box notices.
func TestCutsOnKeptConnections(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(f *fixture, v *frames, id uint32)
		want string
	}{
		"revoked": {func(f *fixture, _ *frames, _ uint32) {
			f.remove("one" + domain)
			f.CloseURL("one")
		}, errCut.Error()},
		"reset":        {func(_ *fixture, v *frames, id uint32) { _ = v.WriteRSTStream(id, http2.ErrCodeCancel) }, relay.ErrClientGone.Error()},
		"disconnected": {func(_ *fixture, v *frames, _ uint32) { _ = v.Close() }, relay.ErrClientGone.Error()},
		"stopped": {func(f *fixture, _ *frames, _ uint32) {
			now, cancel := context.WithCancel(context.Background())
			cancel()
			_ = f.Shutdown(now)
		}, errCut.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t, nil)
			asked, ended := make(chan struct{}), make(chan struct{})
			v := f.primed(t, func(_ net.Conn, in *bufio.Reader, _ *http.Request) {
				close(asked)
				_, _ = in.ReadByte()
				close(ended)
			})
			id := v.ask(true, to("GET", "one", "/second")...)
			<-asked
			c.end(f, v, id)
			<-ended
			f.event(t, func(e audit.Event) bool { return e.Path == "/second" && e.Error == c.want })
		})
	}
}

// TestSlowBoxOnAKeptConnection: a request that has waited without a goroutine for a while is still answered, or is refused
// after the box's ResponseTimeout.
func TestSlowBoxOnAKeptConnection(t *testing.T) {
	t.Parallel()
	for patience, want := range map[time.Duration]string{time.Minute: "200", 5 * time.Second: "504"} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			f := start(t, func(c *Config) { c.ResponseTimeout = patience })
			v := f.primed(t, func(c net.Conn, in *bufio.Reader, _ *http.Request) {
				if want == "504" {
					_, _ = in.ReadByte()
					return
				}
				time.Sleep(2*relay.PollLimit + 100*time.Millisecond)
				_, _ = io.WriteString(c, firstAnswer)
			})
			if r := v.answer(v.ask(true, to("GET", "one", "/second")...)); r.status() != want {
				t.Errorf("%+v", r)
			}
		})
	}
}

// faulty panics when it records a request for a path, before the request is recorded.
type faulty struct {
	audit.Recorder
	path string
}

func (f faulty) Record(e audit.Event) {
	if e.Path == f.path {
		panic("no")
	}
	f.Recorder.Record(e)
}

// TestPanicAtTheEndOfARequestOverHTTP2: a fault of the gateway when a request ends that no goroutine serves, or that never got that far,
// ends this request and nothing else. The request's place comes back, once.
func TestPanicAtTheEndOfARequestOverHTTP2(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Audit = faulty{c.Audit, "/second"} })
	v := f.primed(t, func(c net.Conn, _ *bufio.Reader, _ *http.Request) { _, _ = io.WriteString(c, firstAnswer) })
	v.ask(true, to("GET", "one", "/second")...)
	for err := error(nil); err == nil; { // to the end of the response, or of the connection
		f, failed := v.ReadFrame()
		if err = failed; err == nil && f.Header().Flags.Has(http2.FlagDataEndStream) && f.Header().Type == http2.FrameData {
			break
		}
	}
	other := f.frames(t, "one")
	if r := other.answer(other.ask(true, to("GET", "one", "/third")...)); r.status() != "200" {
		t.Errorf("another visitor: %+v", r)
	}
	f.event(t, func(e audit.Event) bool { return e.Path == "/third" })
	f.places.mu.Lock()
	defer f.places.mu.Unlock()
	if f.places.taken != 0 || len(f.places.boxes) != 0 || len(f.places.peers) != 0 {
		t.Errorf("%d places are taken, by boxes %v and networks %v", f.places.taken, f.places.boxes, f.places.peers)
	}
}

// TestAttackSocketIntoAHalfClosedBox: a WebSocket over HTTP/2 ends some time after the box has ended its direction, although the visitor goes
// on sending and the box does not read.
func TestAttackSocketIntoAHalfClosedBox(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) {
		c.Dial = func(_ context.Context, to Target) (net.Conn, error) {
			conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to.Addr))
			if err != nil {
				return nil, err
			}
			return conn, conn.SetWriteBuffer(1)
		}
	})
	over := make(chan struct{})
	defer close(over)
	f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_ = c.(*net.TCPConn).SetReadBuffer(1)
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "+
			handshake.Accept(r.Header.Get("Sec-WebSocket-Key"))+"\r\n\r\n")
		_ = c.(*net.TCPConn).CloseWrite()
		<-over
	})
	v := f.frames(t, "one")
	id := v.ask(false, ":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", "one"+domain, ":path", "/socket",
		"sec-websocket-version", "13")
	for range 3 {
		_ = v.WriteData(id, false, make([]byte, 16<<10))
	}
	f.event(t, func(e audit.Event) bool {
		return e.Path == "/socket" && e.Phase != audit.PhaseOpen && e.Phase != audit.PhaseOngoing
	})
}
