package socket

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Handlers counts connections from accept to their end, across changes of ownership. The zero value is ready to use.
// Safe for concurrent use.
type Handlers struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // Add only under mu while not closed, or while the count is above 0
}

// Track counts a connection, also in count unless that is nil, and returns its ownership. It returns nil after
// [Handlers.Close]. The caller must set End and call Run.
func (h *Handlers) Track(count *atomic.Int64) *Owned {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.running.Add(1)
	if count != nil {
		count.Add(1)
	}
	return &Owned{handlers: h, count: count}
}

// Go runs f in a goroutine that Wait also waits for. The caller must own a connection.
func (h *Handlers) Go(f func()) { h.running.Go(f) }

// Close makes [Handlers.Track] return nil from now on.
func (h *Handlers) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
}

// Wait waits until all counted connections and goroutines have ended. Call it after [Handlers.Close].
func (h *Handlers) Wait() { h.running.Wait() }

// Owned is the ownership of a connection. The owner is either a goroutine in [Owned.Run], or the component that work
// passed the connection on to, such as a tunnel, until it calls Run again. The connection ends exactly once: when work
// returns without passing it on, or panics.
type Owned struct {
	// End ends the connection. panicked is the value that work panicked with, or nil. Set it before the first Run.
	End func(panicked any)

	handlers *Handlers
	count    *atomic.Int64
	owned    atomic.Bool // a goroutine is in Run, or the connection has ended
	next     func()      // see HandOver; used by that goroutine only
}

// Run calls work as the owner. Afterwards it passes the connection on if work called [Owned.HandOver], and ends it
// otherwise. It returns false without calling work if another goroutine is the owner or the connection has ended. Safe
// for concurrent use.
func (o *Owned) Run(work func()) (taken bool) {
	if !o.owned.CompareAndSwap(false, true) {
		return false
	}
	taken = true // also if work panics
	defer func() { o.releaseOwnership(recover()) }()
	work()
	return taken
}

// HandOver schedules the connection to be passed on when the calling work returns. to then starts the new owner, which
// calls Run when it is done. If the work panics, to is not called. HandOver may be called once per Run.
func (o *Owned) HandOver(to func()) {
	if o.next != nil {
		panic("socket: a connection was passed on twice")
	}
	o.next = to
}

// Go passes the connection on to a new goroutine that runs work.
func (o *Owned) Go(work func()) {
	o.HandOver(func() { go o.Run(work) })
}

// releaseOwnership passes the connection on, or ends it.
func (o *Owned) releaseOwnership(panicked any) {
	next := o.next
	o.next = nil
	if panicked != nil || next == nil {
		o.endConnection(panicked)
		return
	}
	defer func() {
		if v := recover(); v != nil && !o.Run(func() { panic(v) }) {
			panic(v) // the new owner continues
		}
	}()
	o.owned.Store(false)
	next()
}

func (o *Owned) endConnection(panicked any) {
	defer o.handlers.running.Done()
	if o.count != nil {
		defer o.count.Add(-1)
	}
	o.End(panicked)
}

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
