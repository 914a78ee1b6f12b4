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

const (
	// drainMost is the most connections that are taken from a listener that is drained: as many as can have waited. More are those
	// of now, of whom there may be no end.
	drainMost = 4096
	// drainFaults is how often accepting may fail meanwhile, as for want of a descriptor. The caller tries again.
	drainFaults = 6
	drainTime   = 100 * time.Millisecond // for one that waits: it is accepted at once
)

// Queue is a listener of TCP or Unix sockets as a [Drainer]. Closing the socket resets the connections that the kernel has made for
// it and that nobody has accepted: their clients take them for open, and may have sent a request.
type Queue struct {
	net.Listener
	draining       atomic.Bool
	taken, faulted int // by Accept, which one goroutine calls
}

// NewQueue returns ln, which must be a [net.TCPListener] or a [net.UnixListener] to be drained.
func NewQueue(ln net.Listener) *Queue { return &Queue{Listener: ln} }

// Accept implements [net.Listener]. One goroutine at a time may call it.
func (q *Queue) Accept() (net.Conn, error) {
	if !q.draining.Load() {
		c, err := q.Listener.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) || !q.draining.Load() {
			return c, err
		}
	}
	for q.taken < drainMost && q.faulted < drainFaults && q.anyWaits() {
		q.limit(time.Now().Add(drainTime))
		c, err := q.Listener.Accept()
		switch {
		case err == nil:
			q.taken++
			return c, nil
		case !errors.Is(err, os.ErrDeadlineExceeded): // else the machine is busy, and it waits still
			q.faulted++
			return nil, err
		}
	}
	_ = q.Close()
	return nil, net.ErrClosed
}

// Drain implements [Drainer].
func (q *Queue) Drain() {
	q.draining.Store(true)
	q.limit(time.Unix(1, 0)) // ends an Accept that waits
}

func (q *Queue) limit(until time.Time) {
	if l, ok := q.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		_ = l.SetDeadline(until)
	}
}

// anyWaits reports whether there is a connection to accept.
func (q *Queue) anyWaits() bool {
	l, ok := q.Listener.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	err = raw.Control(func(fd uintptr) {
		for {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
	return err == nil && n > 0
}
