// Package sockettest has listeners and faults for tests of connections.
package sockettest

import (
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

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

// Vanish makes the kernel drop all packets received for a TCP connection, as if its host were gone: the peer gets no
// answer. back undoes it. Requires root, because the kernel may refuse filters to other users.
func Vanish(t testing.TB, c net.Conn) (back func()) {
	t.Helper()
	control := func(what func(fd int) error) {
		tcp, ok := socket.TCP(c)
		if !ok {
			t.Fatal("not a TCP connection")
		}
		raw, err := tcp.SyscallConn()
		if err == nil {
			fault := raw.Control(func(fd uintptr) { err = what(int(fd)) })
			if fault != nil {
				err = fault
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} // keep 0 bytes of each packet
	control(func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
	})
	return func() {
		control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) })
	}
}
