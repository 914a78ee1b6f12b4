// Package sockettest has listeners and faults for tests of connections.
package sockettest

import (
	"net"
	"sync"

	"boxgate/internal/socket"
)

// Late is a listener whose Accept returns no connection before it is drained or closed.
type Late struct {
	net.Listener
	// Asked receives an element when Accept is called.
	Asked chan struct{}

	once  sync.Once
	ended chan struct{}
}

// NewLate returns a Late for ln.
func NewLate(ln net.Listener) *Late {
	return &Late{Listener: ln, Asked: make(chan struct{}, 1), ended: make(chan struct{})}
}

// Accept implements [net.Listener].
func (l *Late) Accept() (net.Conn, error) {
	select {
	case l.Asked <- struct{}{}:
	default:
	}
	<-l.ended
	return l.Listener.Accept()
}

// Drain implements [socket.Drainer].
func (l *Late) Drain() {
	socket.Drain(l.Listener)
	l.release()
}

// Close closes the listener.
func (l *Late) Close() error {
	defer l.release()
	return l.Listener.Close()
}

func (l *Late) release() { l.once.Do(func() { close(l.ended) }) }
