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

// Drainer is a listener that can stop listening without resetting the connections in its queue.
type Drainer interface {
	net.Listener
	// Drain makes Accept return the connections that already wait in the queue. When the queue is empty, or after some
	// thousands of connections, the listener closes and Accept returns [net.ErrClosed]. The listener closes only while
	// a goroutine calls Accept.
	Drain()
}

// Drain drains ln if it is a [Drainer]. Otherwise it closes ln.
func Drain(ln net.Listener) {
	if d, ok := ln.(Drainer); ok {
		d.Drain()
		return
	}
	_ = ln.Close()
}

const (
	// drainMost bounds the connections accepted from a drained listener. It is the longest possible queue; clients that
	// keep connecting could otherwise prolong the drain without end.
	drainMost = 4096
	// drainFaults bounds the failures of Accept during a drain, such as a lack of descriptors. The caller retries.
	drainFaults = 6
	drainTime   = 100 * time.Millisecond // timeout of Accept for a queued connection, which normally returns immediately
)

// Queue is a [Drainer] for TCP and Unix sockets. Closing a listening socket resets the connections in its queue,
// although their clients consider them open and may have sent a request.
type Queue struct {
	net.Listener
	draining         atomic.Bool
	accepted, faults int // used by Accept only
}

// NewQueue returns a Queue for ln. Only a [net.TCPListener] or a [net.UnixListener] can be drained.
func NewQueue(ln net.Listener) *Queue { return &Queue{Listener: ln} }

// Accept implements [net.Listener]. One goroutine at a time may call it.
func (q *Queue) Accept() (net.Conn, error) {
	if !q.draining.Load() {
		c, err := q.Listener.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) || !q.draining.Load() {
			return c, err
		}
	}
	for q.accepted < drainMost && q.faults < drainFaults && q.anyWaits() {
		q.setDeadline(time.Now().Add(drainTime))
		c, err := q.Listener.Accept()
		switch {
		case err == nil:
			q.accepted++
			return c, nil
		case !errors.Is(err, os.ErrDeadlineExceeded): // on a busy machine the connection is still queued
			q.faults++
			return nil, err
		}
	}
	_ = q.Close()
	return nil, net.ErrClosed
}

// Drain implements [Drainer].
func (q *Queue) Drain() {
	q.draining.Store(true)
	q.setDeadline(time.Unix(1, 0)) // interrupts a pending Accept
}

func (q *Queue) setDeadline(until time.Time) {
	if l, ok := q.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		_ = l.SetDeadline(until)
	}
}

// anyWaits reports whether the queue has a connection.
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
