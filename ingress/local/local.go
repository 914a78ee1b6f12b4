package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Server serves handlers over connections that Dial makes. The zero value is ready to use. Safe for concurrent use.
type Server struct {
	// Panicked is called after a panic of a handler, in the goroutine that panicked. nil: no call.
	Panicked func()

	mu     sync.Mutex
	pairs  *pairs // nil before the first Dial
	http   http.Server
	closed bool
}

// Dial returns a connection whose requests, in HTTP/1.1, are served by a handler. It takes two file descriptors, the second until the
// handler has returned. The handler's context ends when the connection is closed, as usual with net/http: while the handler reads the
// body of its request, the read fails instead.
func (s *Server) Dial(h http.Handler) (net.Conn, error) {
	pairs, err := s.open()
	if err != nil {
		return nil, err
	}
	near, far, err := connect()
	if err != nil {
		return nil, err
	}
	select {
	case pairs.made <- served{far, h}:
		return near, nil
	case <-pairs.closed:
		_, _ = near.Close(), far.Close()
		return nil, http.ErrServerClosed
	}
}

// Close closes all connections, and the server for good.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.pairs != nil {
		_ = s.pairs.Close() // Serve may not have begun
		_ = s.http.Close()
	}
}

// open starts the server, the first time.
func (s *Server) open() (*pairs, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, http.ErrServerClosed
	}
	if s.pairs == nil {
		s.pairs = &pairs{made: make(chan served), closed: make(chan struct{})}
		s.http.Handler = http.HandlerFunc(s.serve)
		s.http.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, handlerKey{}, c.(served).handler)
		}
		s.http.ErrorLog = log.New(io.Discard, "", 0) // its messages quote requests; panics are reported to Panicked
		go func() { _ = s.http.Serve(s.pairs) }()
	}
	return s.pairs, nil
}

// serve calls the handler of the request's connection. A panic ends the connection only.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if v := recover(); v != nil {
			if err, ok := v.(error); s.Panicked != nil && !(ok && errors.Is(err, http.ErrAbortHandler)) {
				s.Panicked()
			}
			panic(http.ErrAbortHandler)
		}
	}()
	r.Context().Value(handlerKey{}).(http.Handler).ServeHTTP(w, r)
}

type handlerKey struct{}

// served is the end of a connection that a handler serves.
type served struct {
	net.Conn
	handler http.Handler
}

// pairs is the listener of the connections that Dial makes.
type pairs struct {
	made   chan served
	once   sync.Once
	closed chan struct{}
}

// Accept implements [net.Listener].
func (p *pairs) Accept() (net.Conn, error) {
	select {
	case c := <-p.made:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (p *pairs) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements [net.Listener].
func (p *pairs) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// connect returns two connected sockets.
func connect() (a, b net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("a pair of sockets: %w", err)
	}
	if a, err = connOf(fds[0]); err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	if b, err = connOf(fds[1]); err != nil {
		_ = a.Close()
		return nil, nil, err
	}
	return a, b, nil
}

// connOf returns the connection of a socket, which it takes over.
func connOf(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "local")
	defer f.Close()
	return net.FileConn(f) // of a duplicate
}
