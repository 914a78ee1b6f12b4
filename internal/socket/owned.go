package socket

import (
	"sync"
	"sync/atomic"
)

// Handlers counts connections from accept until they have ended, whoever has them meanwhile. The zero value is ready to
// use. Safe for concurrent use.
type Handlers struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // Add under mu and only while not closed, or while one is counted
}

// Own counts a connection, in count as well if that is not nil, and returns its ownership; nil after [Handlers.Close]. The
// caller must set End, and call Run.
func (h *Handlers) Own(count *atomic.Int64) *Owned {
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

// Go runs f in a goroutine that is counted as well. The caller must own a connection.
func (h *Handlers) Go(f func()) { h.running.Go(f) }

// Close lets no more connections be counted.
func (h *Handlers) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
}

// Wait waits until all that are counted have ended. Call it after [Handlers.Close].
func (h *Handlers) Wait() { h.running.Wait() }

// Owned is the ownership of a connection. It is either with a goroutine in [Owned.Run], or with what that has passed it on
// to, such as a tunnel, until somebody calls Run again. The connection ends once, when work returns that has not passed it
// on, or panics.
type Owned struct {
	// End ends the connection. panicked is what work panicked with, or nil. Set it before the first Run.
	End func(panicked any)

	handlers *Handlers
	count    *atomic.Int64
	taken    atomic.Bool // a goroutine is in Run, or the connection has ended
	next     func()      // see Pass; used by that goroutine only
}

// Run does work as the owner, and then passes the connection on if work has called [Owned.Pass], or ends it. It reports
// false, and does nothing, if another goroutine is the owner or the connection has ended. Safe for concurrent use.
func (o *Owned) Run(work func()) (taken bool) {
	if !o.taken.CompareAndSwap(false, true) {
		return false
	}
	taken = true // also if work panics
	defer func() { o.leave(recover()) }()
	work()
	return taken
}

// Pass has the connection passed on once the work that calls it has returned: to starts what owns it from then on and
// calls Run when it is done. If the work panics, to is not called. It can be passed on once in a Run.
func (o *Owned) Pass(to func()) {
	if o.next != nil {
		panic("socket: a connection was passed on twice")
	}
	o.next = to
}

// Go is Pass to a new goroutine, which does work in Run.
func (o *Owned) Go(work func()) {
	o.Pass(func() { go o.Run(work) })
}

// leave passes the connection on, or ends it.
func (o *Owned) leave(panicked any) {
	next := o.next
	o.next = nil
	if panicked != nil || next == nil {
		o.end(panicked)
		return
	}
	defer func() {
		if v := recover(); v != nil && !o.Run(func() { panic(v) }) {
			panic(v) // whoever has it by now goes on
		}
	}()
	o.taken.Store(false)
	next()
}

func (o *Owned) end(panicked any) {
	defer o.handlers.running.Done()
	if o.count != nil {
		defer o.count.Add(-1)
	}
	o.End(panicked)
}
