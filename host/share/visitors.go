package share

import (
	"net"
	"sync"

	"boxgate/internal/socket"
)

// visitors is a listener with a limit on the connections that are open.
type visitors struct {
	net.Listener
	places chan struct{}

	closing, draining sync.Once
	closed, drained   chan struct{}
}

func newVisitors(ln net.Listener, most int) *visitors {
	return &visitors{Listener: ln, places: make(chan struct{}, most), closed: make(chan struct{}), drained: make(chan struct{})}
}

// Accept waits for a free place, then for a connection.
func (v *visitors) Accept() (net.Conn, error) {
	if !v.enter() {
		return nil, net.ErrClosed
	}
	c, err := v.Listener.Accept()
	if err != nil {
		v.leave()
		return nil, err
	}
	return &visitor{Conn: c, leave: sync.OnceFunc(v.leave)}, nil
}

// enter takes a place. It reports false when the listener is closed, which it is if it is drained and there is none.
func (v *visitors) enter() bool {
	select {
	case v.places <- struct{}{}:
		return true
	default:
	}
	select {
	case v.places <- struct{}{}:
		return true
	case <-v.closed:
	case <-v.drained:
		_ = v.Close()
	}
	return false
}

func (v *visitors) leave() { <-v.places }

// Drain implements [socket.Drainer] if the listener below does. Who has connected and finds no place is not waited for.
func (v *visitors) Drain() {
	v.draining.Do(func() { close(v.drained) })
	socket.Drain(v.Listener)
}

// Close closes the listener. Connections stay open.
func (v *visitors) Close() error {
	v.closing.Do(func() { close(v.closed) })
	return v.Listener.Close()
}

// visitor is a connection that has a place until it is closed.
type visitor struct {
	net.Conn
	leave func()
}

// NetConn returns the connection below. It must not be closed in the place of this one, or the place stays taken.
func (v *visitor) NetConn() net.Conn { return v.Conn }

// Close closes the connection and frees its place.
func (v *visitor) Close() error {
	defer v.leave()
	return v.Conn.Close()
}
