package socket

import (
	"sync"
	"sync/atomic"
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
