package relay

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
	"boxgate/relay/h2"
)

// PollLimit is the shortest time after which a [Waiter] whose server is silent gets a goroutine. It may take twice as long.
const PollLimit = time.Second

// Waiter is a request that waits for a server without a goroutine. Its methods are called by a goroutine that serves other requests
// too: they must not block.
type Waiter interface {
	// Answered is called when the server has sent something or closed the connection. It may also be called without cause. The batch is
	// flushed after the calls for all requests whose servers have sent something.
	Answered(b *h2.Batch)
	// Overdue is called when the server has been silent for a while.
	Overdue()
}

// Poller watches connections to servers for many requests at a time. It has one goroutine for each processor, which waits for an epoll
// instance. The zero value is ready to use. Safe for concurrent use.
type Poller struct {
	mu     sync.Mutex
	loops  []*pollLoop
	next   int
	closed bool
}

// pollLoop is one epoll instance, which the runtime's poller watches: no thread waits for it.
type pollLoop struct {
	fd   int // not to be used after file was closed
	file *os.File
	raw  syscall.RawConn

	ended   atomic.Bool // written under mu
	mu      sync.Mutex
	last    uint64
	watches map[uint64]*Watch
	sweep   *time.Timer   // runs while there are watches
	sweeps  atomic.Uint64 // how often it has run
}

// Watch is a connection that a [Poller] watches. At most one request waits at a time.
type Watch struct {
	loop *pollLoop
	id   uint64

	state atomic.Int32
	to    Waiter        // owned by whoever has changed state to watchIdle
	since atomic.Uint64 // the number of sweeps when the wait began
}

const (
	watchIdle    = iota // events are ignored
	watchArmed          // the request is being sent; an event changes this to watchIdle
	watchWaiting        // an event changes this to watchIdle and calls the Waiter
	watchEnded          // the connection was aborted: no wait begins
)

// Add watches a connection until [Watch.Close]. It returns nil if that is not possible.
func (p *Poller) Add(conn syscall.RawConn) *Watch {
	l := p.loop()
	if l == nil {
		return nil
	}
	w := &Watch{loop: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended.Load() {
		return nil
	}
	l.last++
	w.id = l.last
	added := false
	err := conn.Control(func(fd uintptr) {
		e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(uint32(w.id)), Pad: int32(uint32(w.id >> 32))} //nolint:gosec // halves
		added = unix.EpollCtl(l.fd, unix.EPOLL_CTL_ADD, int(fd), &e) == nil
	})
	if err != nil || !added {
		return nil
	}
	if l.watches[w.id] = w; l.sweep == nil {
		l.sweep = time.AfterFunc(PollLimit, l.sweepOnce)
	}
	return w
}

// loop returns the epoll instance for the next connection, or nil.
func (p *Poller) loop() *pollLoop {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if n := len(p.loops); n < runtime.GOMAXPROCS(0) {
		l, err := newPollLoop()
		if err == nil {
			p.loops = append(p.loops, l)
			return l
		}
		if n == 0 {
			return nil
		}
	}
	p.next = (p.next + 1) % len(p.loops)
	return p.loops[p.next]
}

func newPollLoop() (*pollLoop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // only then does the runtime watch it
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	l := &pollLoop{fd: fd, file: os.NewFile(uintptr(fd), "epoll"), watches: map[uint64]*Watch{}}
	if l.raw, err = l.file.SyscallConn(); err != nil {
		_ = l.file.Close()
		return nil, err
	}
	go l.run()
	return l, nil
}

// Close ends the goroutines. Requests that wait are overdue.
func (p *Poller) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, l := range p.loops {
		l.end()
	}
	p.loops = nil
}

func (l *pollLoop) end() {
	l.mu.Lock()
	l.ended.Store(true)
	if l.sweep != nil {
		l.sweep.Stop()
	}
	_ = l.file.Close()
	l.mu.Unlock()
	l.overdue(func(*Watch) bool { return true })
}

// run passes events on until the loop has ended.
func (l *pollLoop) run() {
	events := make([]unix.EpollEvent, 128)
	due := make([]*Watch, 0, len(events))
	n, failed := 0, false
	var batch h2.Batch
	poll := func(fd uintptr) bool {
		var err error
		n, err = socket.Events(int(fd), events)
		failed = err != nil
		return n != 0 || failed
	}
	for l.raw.Read(poll) == nil && !failed {
		due = l.due(due[:0], events[:n])
		for _, w := range due {
			w.event(&batch)
		}
		batch.Flush()
		clear(due)
	}
}

// due appends the watches that the events are about.
func (l *pollLoop) due(to []*Watch, events []unix.EpollEvent) []*Watch {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range events {
		id := uint64(uint32(events[i].Fd)) | uint64(uint32(events[i].Pad))<<32 //nolint:gosec // halves
		if w := l.watches[id]; w != nil {
			to = append(to, w)
		}
	}
	return to
}

// sweepOnce ends the waits that take too long.
func (l *pollLoop) sweepOnce() {
	now := l.sweeps.Add(1)
	l.overdue(func(w *Watch) bool { return w.since.Load()+1 < now })
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sweep = nil; len(l.watches) > 0 && !l.ended.Load() {
		l.sweep = time.AfterFunc(PollLimit, l.sweepOnce)
	}
}

// overdue ends the waits that match.
func (l *pollLoop) overdue(match func(*Watch) bool) {
	var late []*Watch
	l.mu.Lock()
	for _, w := range l.watches {
		if w.state.Load() == watchWaiting && match(w) {
			late = append(late, w)
		}
	}
	l.mu.Unlock()
	for _, w := range late {
		if match(w) && w.Stop() {
			w.to.Overdue()
		}
	}
}

// event is called when something has arrived.
func (w *Watch) event(b *h2.Batch) {
	switch {
	case w.Stop():
		w.to.Answered(b)
	default:
		w.state.CompareAndSwap(watchArmed, watchIdle)
	}
}

// Arm prepares a wait. Call it before the request is sent.
func (w *Watch) Arm(to Waiter) {
	w.to = to
	w.since.Store(w.loop.sweeps.Load())
	w.state.Store(watchArmed)
}

// Wait begins the wait for which the watch was armed. It reports false if something has arrived since, or the wait must not begin. If it reports true, the request belongs
// to the Waiter's methods, and one may have been called already.
func (w *Watch) Wait() bool {
	return w.state.CompareAndSwap(watchArmed, watchWaiting) && (!w.loop.ended.Load() || !w.Stop())
}

// Again continues a wait. Call it in [Waiter.Answered] when no bytes could be read. It reports false if the request must not wait. If it
// reports true, the request belongs to the Waiter's methods again, and one may have been called already.
func (w *Watch) Again() bool {
	return w.state.CompareAndSwap(watchIdle, watchWaiting) && (!w.loop.ended.Load() || !w.Stop())
}

// Stop ends the wait. It reports whether there was one: then neither of the Waiter's methods has been called for it, nor will be.
func (w *Watch) Stop() bool { return w.state.CompareAndSwap(watchWaiting, watchIdle) }

// End is Stop for a connection that was aborted, for it may have no more events: no other wait begins.
func (w *Watch) End() bool { return w.state.Swap(watchEnded) == watchWaiting }

// Rest drops the reference to the last Waiter.
func (w *Watch) Rest() { w.to = nil }

// Close ends the watch. Call it when no request waits.
func (w *Watch) Close() {
	w.loop.mu.Lock()
	defer w.loop.mu.Unlock()
	delete(w.loop.watches, w.id)
}

// Remove ends the watch of a connection that stays open: its events would wake the poller for requests that have a goroutine.
func (w *Watch) Remove(conn syscall.RawConn) {
	l := w.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.watches, w.id)
	if l.ended.Load() {
		return
	}
	_ = conn.Control(func(fd uintptr) { // fails on a closed connection, which epoll does not watch any longer
		_ = unix.EpollCtl(l.fd, unix.EPOLL_CTL_DEL, int(fd), nil)
	})
}
