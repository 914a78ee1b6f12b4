package share

import (
	"net"
	"sync"
)

// visitors is a listener with a limit on the connections that are open.
type visitors struct {
	net.Listener
	places chan struct{}
	once   sync.Once
	closed chan struct{}
}

func newVisitors(ln net.Listener, most int) *visitors {
	return &visitors{Listener: ln, places: make(chan struct{}, most), closed: make(chan struct{})}
}

// Accept waits for a free place, then for a connection.
func (v *visitors) Accept() (net.Conn, error) {
	select {
	case v.places <- struct{}{}:
	case <-v.closed:
		return nil, net.ErrClosed
	}
	c, err := v.Listener.Accept()
	if err != nil {
		v.leave()
		return nil, err
	}
	return &visitor{Conn: c, leave: sync.OnceFunc(v.leave)}, nil
}

func (v *visitors) leave() { <-v.places }

// Close closes the listener. Connections stay open.
func (v *visitors) Close() error {
	v.once.Do(func() { close(v.closed) })
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
