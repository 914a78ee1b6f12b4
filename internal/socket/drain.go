package socket

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Drainer is a listener that can stop listening without turning away those who have found it listening.
type Drainer interface {
	net.Listener
	// Drain has Accept return the connections that are made already, and wait for none. Then, or after some thousands of them,
	// the listener is closed and Accept returns [net.ErrClosed]. Somebody must call Accept, or Close, for that.
	Drain()
}

// Drain drains a listener that is a [Drainer], and closes another.
func Drain(ln net.Listener) {
	if d, ok := ln.(Drainer); ok {
		d.Drain()
		return
	}
	_ = ln.Close()
}

// drainMost is the most connections that are taken from a listener that is drained: as many as can have waited. More are those of
// now, of whom there may be no end.
const drainMost = 4096

// Queue is a listener of TCP or Unix sockets as a [Drainer]. Closing the socket resets the connections that the kernel has made for
// it and that nobody has accepted: their clients take them for open, and may have sent a request.
type Queue struct {
	net.Listener
	draining atomic.Bool
	drained  atomic.Int32
}

// NewQueue returns ln, which must be a [net.TCPListener] or a [net.UnixListener] to be drained.
func NewQueue(ln net.Listener) *Queue { return &Queue{Listener: ln} }

// Accept implements [net.Listener].
func (q *Queue) Accept() (net.Conn, error) {
	if !q.draining.Load() {
		c, err := q.Listener.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) || !q.draining.Load() {
			return c, err
		}
	}
	if q.drained.Add(1) <= drainMost {
		if c, err := q.waiting(); err == nil {
			return c, nil
		}
	}
	_ = q.Close()
	return nil, net.ErrClosed
}

// Drain implements [Drainer].
func (q *Queue) Drain() {
	q.draining.Store(true)
	if l, ok := q.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		_ = l.SetDeadline(time.Unix(1, 0)) // ends an Accept that waits
	}
}

// waiting returns a connection that waits to be accepted, or an error if there is none.
func (q *Queue) waiting() (net.Conn, error) {
	l, ok := q.Listener.(syscall.Conn)
	if !ok {
		return nil, net.ErrClosed
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, failed := -1, error(nil)
	err = raw.Control(func(listener uintptr) {
		for {
			fd, _, failed = unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			if !errors.Is(failed, unix.EINTR) && !errors.Is(failed, unix.ECONNABORTED) {
				return
			}
		}
	})
	if err = errors.Join(err, os.NewSyscallError("accept4", failed)); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "")
	defer func() { _ = f.Close() }()
	return net.FileConn(f)
}
