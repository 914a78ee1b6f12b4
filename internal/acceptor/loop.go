package acceptor

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// Loops accept connections until they are retired, and count the handlers of these. The zero value is ready. Safe for concurrent use.
type Loops struct {
	mu        sync.Mutex
	retired   bool
	listeners map[net.Listener]bool
	accepting sync.WaitGroup // Add under mu and only while not retired
	handlers  sync.WaitGroup // Add by a loop
}

// Serve calls handle in a goroutine for each connection of ln until [Loops.Retire], and closes ln. handle closes the connection. Serve
// returns an error only of closing ln.
func (l *Loops) Serve(ln net.Listener, handle func(net.Conn)) error {
	l.mu.Lock()
	if l.retired {
		l.mu.Unlock()
		return ln.Close()
	}
	if l.listeners == nil {
		l.listeners = map[net.Listener]bool{}
	}
	l.listeners[ln] = true
	l.accepting.Add(1)
	l.mu.Unlock()
	defer l.accepting.Done()
	defer ln.Close()
	const firstPause, lastPause = 5 * time.Millisecond, time.Second
	for pause := firstPause; ; {
		conn, err := ln.Accept()
		switch {
		case err == nil:
			pause = firstPause
			l.handlers.Go(func() { handle(conn) })
		case errors.Is(err, net.ErrClosed) || l.Retired():
			return nil
		default: // out of descriptors or memory
			time.Sleep(pause)
			pause = min(2*pause, lastPause)
		}
	}
}

// Retired reports whether [Loops.Retire] was called.
func (l *Loops) Retired() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.retired
}

// Retire closes the listeners and returns once no more connections are accepted. Handlers continue.
func (l *Loops) Retire() {
	l.mu.Lock()
	l.retired = true
	for ln := range l.listeners {
		_ = ln.Close()
	}
	l.mu.Unlock()
	l.accepting.Wait()
}

// Wait returns once all handlers have returned, or the error of ctx. It must not be called before [Loops.Retire].
func (l *Loops) Wait(ctx context.Context) error {
	ended := make(chan struct{})
	go func() { l.handlers.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
