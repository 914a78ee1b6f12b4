package ingress

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"golang.org/x/net/http2"

	"boxgate/audit"
	"boxgate/internal/handshake"
)

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
