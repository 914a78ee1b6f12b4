package tunnel

import (
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
)

// loop moves the bytes of many tunnels in one goroutine. The runtime's poller watches the loop's epoll instance, so waiting
// takes no thread, and idle tunnels have no goroutine.
type loop struct {
	fd   int      // not to be used after the loop may have ended
	file *os.File // of fd
	raw  syscall.RawConn
	busy []*Tunnel // tunnels with more to move, longest wait first; used by the goroutine only

	mu      sync.Mutex
	tunnels []*Tunnel // indexed by slot; nil where free
	free    []int32
	serial  int32
	open    int
	retired bool // ends with its last tunnel
	ended   bool
}

// slot identifies a tunnel in a loop. The serial number distinguishes it from earlier tunnels at the same index: an event
// may be delivered late.
type slot struct{ index, serial int32 }

// interest are the epoll events of a tunnel's sockets, edge-triggered.
const interest = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

// newLoop starts a loop.
func newLoop() (*loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // the runtime polls only non-blocking files
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	l := &loop{fd: fd, file: os.NewFile(uintptr(fd), "epoll")}
	if l.raw, err = l.file.SyscallConn(); err != nil {
		_ = l.file.Close()
		return nil, err
	}
	go l.run()
	return l, nil
}

// run handles events until the loop has ended.
func (l *loop) run() {
	events := make([]unix.EpollEvent, 128)
	var n, rounds int
	look := func(fd uintptr) { n = poll(fd, events) }
	wait := func(fd uintptr) bool { look(fd); return n != 0 }
	for {
		err := l.raw.Control(look)
		if err == nil && n == 0 && len(l.busy) == 0 {
			err = l.raw.Read(wait)
		}
		if err != nil || n < 0 {
			return // the loop has ended
		}
		l.handleEvents(events[:n])
		if rounds++; len(l.busy) > 0 && rounds >= len(l.busy) {
			rounds = 0
			runtime.Gosched()
		}
	}
}

// handleEvents runs the tunnels that have events, and one turn of the tunnel that has waited longest of those with more to move.
// So a tunnel with little data does not wait for all the busy ones.
func (l *loop) handleEvents(events []unix.EpollEvent) {
	for _, e := range events {
		if t := l.tunnelAt(slot{e.Fd >> 1, e.Pad}); t != nil && t.handleEvent(int(e.Fd&1), e.Events) {
			l.queue(t)
		}
	}
	if len(l.busy) == 0 {
		return
	}
	t := l.busy[0]
	l.busy = slices.Delete(l.busy, 0, 1)
	if t.queued = false; t.handleEvent(client, 0) {
		l.queue(t)
	}
}

// queue schedules another turn of a tunnel without an event.
func (l *loop) queue(t *Tunnel) {
	if !t.queued {
		t.queued = true
		l.busy = append(l.busy, t)
	}
}

// poll returns the number of pending events, or -1 on an error.
func poll(fd uintptr, events []unix.EpollEvent) int {
	n, err := socket.Events(int(fd), events)
	if err != nil {
		return -1
	}
	return n
}

func (l *loop) tunnelAt(s slot) *Tunnel {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tunnels[s.index]; t != nil && t.slot == s {
		return t
	}
	return nil
}

// add gives a tunnel a slot. It returns false if the loop has ended.
func (l *loop) add(t *Tunnel) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.serial++
	t.loop, t.slot.serial = l, l.serial
	if n := len(l.free); n > 0 {
		t.slot.index = l.free[n-1]
		l.free = l.free[:n-1]
		l.tunnels[t.slot.index] = t
	} else {
		t.slot.index = int32(len(l.tunnels)) //nolint:gosec // no more than descriptors
		l.tunnels = append(l.tunnels, t)
	}
	l.open++
	return true
}

// remove frees a tunnel's slot. Closing its sockets stops their events.
func (l *loop) remove(t *Tunnel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tunnels[t.slot.index] = nil
	l.free = append(l.free, t.slot.index)
	l.open--
	l.closeIfDone()
}

// retire ends the loop when it has no tunnels left.
func (l *loop) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retired = true
	l.closeIfDone()
}

func (l *loop) closeIfDone() {
	if l.retired && l.open == 0 && !l.ended {
		l.ended = true
		_ = l.file.Close()
	}
}

// watch adds one side of a tunnel, which has a slot, to the epoll instance.
func (l *loop) watch(t *Tunnel, side int) error {
	e := unix.EpollEvent{Events: interest, Fd: t.slot.index<<1 | int32(side), Pad: t.slot.serial} //nolint:gosec // 0 or 1
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.fd, unix.EPOLL_CTL_ADD, t.ends[side].fd, &e))
}

// IdleWatch closes an upgraded connection after the idle timeout.
type IdleWatch struct {
	limit  time.Duration
	onIdle func()
	moved  []*atomic.Int64 // bytes in each direction

	mu      sync.Mutex
	timer   *time.Timer
	last    int64
	stopped bool
}

// WatchIdle calls end when the counts have not changed for between one and two idle timeouts: it checks once per timeout.
// [IdleWatch.Stop] must be called.
func (p *Pool) WatchIdle(end func(), moved ...*atomic.Int64) *IdleWatch {
	w := &IdleWatch{limit: p.idle, onIdle: end, moved: moved}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.limit, w.check)
	return w
}

func (w *IdleWatch) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	sum := int64(0)
	for _, n := range w.moved {
		sum += n.Load()
	}
	if sum == w.last {
		w.onIdle()
		return
	}
	w.last = sum
	w.timer.Reset(w.limit)
}

// WatchLost calls end when the server at the other end of a connection has vanished. stop must be called.
func (p *Pool) WatchLost(c net.Conn, end func()) (stop func()) {
	var mu sync.Mutex
	var timer *time.Timer
	stopped := false
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case stopped:
		case socket.UnansweredBy(c) >= p.LostAfter:
			end()
		default:
			timer.Reset(p.LostAfter)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(p.LostAfter, look)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}

// Stop stops the watch. end is not called after Stop has returned.
func (w *IdleWatch) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.timer.Stop()
}
