package acceptor

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// listeners returns listeners of every kind in a gateway.
func listeners(t *testing.T) map[string]*Listener {
	t.Helper()
	all := map[string]*Listener{}
	for _, at := range []struct{ network, address string }{
		{"tcp", "127.0.0.1:0"}, {"tcp", "127.0.0.3:0"}, {"tcp", "[::1]:0"}, {"tcp", ":0"}, {"tcp4", "0.0.0.0:0"},
		{"unix", filepath.Join(t.TempDir(), "socket")},
	} {
		ln, err := net.Listen(at.network, at.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		all[at.network+" "+at.address] = New(ln)
	}
	return all
}

// accept accepts until the listener is closed, and sends the connections.
func accept(l *Listener) <-chan net.Conn {
	conns := make(chan net.Conn, 100)
	go func() {
		defer close(conns)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c
		}
	}()
	return conns
}

// TestListenerThatAccepts: a try succeeds, its connection is not returned by Accept, and other connections are.
func TestListenerThatAccepts(t *testing.T) {
	t.Parallel()
	for name, l := range listeners(t) {
		conns := accept(l)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for range 3 {
			if err := l.Probe(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		network, address := l.Addr().Network(), l.Addr().String()
		if network == "tcp" {
			address = reachable(l.Addr().(*net.TCPAddr).AddrPort()).String()
		}
		visitor, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(name, err)
		}
		served := <-conns
		if network == "tcp" && served.RemoteAddr().String() != visitor.LocalAddr().String() {
			t.Errorf("%s: the connection of a try was handed out: %v", name, served.RemoteAddr())
		}
		if err := l.Probe(ctx); err != nil {
			t.Errorf("%s, beside a visitor: %v", name, err)
		}
		cancel()
		visitor.Close()
		served.Close()
		l.Close()
		for c := range conns {
			t.Errorf("%s: a connection from %v", name, c.RemoteAddr())
		}
	}
}

// TestListenerThatDoesNotAccept: the kernel completes the connection, but the try fails, also on a closed listener.
// When connections are accepted again, tries succeed, and the connections of failed tries do not count as visitors.
func TestListenerThatDoesNotAccept(t *testing.T) {
	t.Parallel()
	for name, l := range listeners(t) {
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			if err := l.Probe(ctx); !errors.Is(err, ErrNotAccepted) {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
		}
		conns := accept(l)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := l.Probe(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		l.Close()
		if err := l.Probe(ctx); !errors.Is(err, ErrNotAccepted) {
			t.Errorf("%s, closed: %v", name, err)
		}
		cancel()
		for c := range conns { // connections of tries that ended early were reset
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: a connection that lives", name)
			}
		}
	}
}
