package tunnel

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
)

// loop moves the bytes of many tunnels in one goroutine. It has an epoll instance of its own, which the runtime's
// poller watches: so no thread waits, and idle tunnels have no goroutine.
type loop struct {
	fd   int      // not to be used once the loop may have ended
	file *os.File // of fd
	raw  syscall.RawConn
	busy []*Tunnel // with more to do, the one that has waited longest first; of the goroutine alone

	mu      sync.Mutex
	tunnels []*Tunnel // by the index of their slots; nil where free
	free    []int32
	serial  int32
	open    int
	retired bool // it ends with its last tunnel
	ended   bool
}

// slot is where a loop finds a tunnel. The serial number tells it from earlier ones there: an event may come late.
type slot struct{ index, serial int32 }

// interest is what the sockets of tunnels are watched for: each change once.
const interest = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

// newLoop starts a loop.
func newLoop() (*loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // only then does the runtime watch it
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

// run turns tunnels until the loop has ended.
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
			return // it has ended
		}
		l.round(events[:n])
		if rounds++; len(l.busy) > 0 && rounds >= len(l.busy) {
			rounds = 0
			runtime.Gosched()
		}
	}
}

// round turns the tunnels that something has happened to, and of those with more to do the one that has waited longest: who has little to
// move does not wait until all have moved much.
func (l *loop) round(events []unix.EpollEvent) {
	for _, e := range events {
		if t := l.at(slot{e.Fd >> 1, e.Pad}); t != nil && t.turn(int(e.Fd&1), e.Events) {
			l.queue(t)
		}
	}
	if len(l.busy) == 0 {
		return
	}
	t := l.busy[0]
	l.busy = slices.Delete(l.busy, 0, 1)
	if t.queued = false; t.turn(client, 0) {
		l.queue(t)
	}
}

// queue has a tunnel turn again without an event.
func (l *loop) queue(t *Tunnel) {
	if !t.queued {
		t.queued = true
		l.busy = append(l.busy, t)
	}
}

// poll returns the number of events that are there, or -1 on an error.
func poll(fd uintptr, events []unix.EpollEvent) int {
	n, err := socket.Events(int(fd), events)
	if err != nil {
		return -1
	}
	return n
}

func (l *loop) at(s slot) *Tunnel {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tunnels[s.index]; t != nil && t.slot == s {
		return t
	}
	return nil
}

// add gives a tunnel a slot. It reports false if the loop has ended.
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

// remove takes back the slot of a tunnel. Closing its sockets ends their events.
func (l *loop) remove(t *Tunnel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tunnels[t.slot.index] = nil
	l.free = append(l.free, t.slot.index)
	l.open--
	l.end()
}

// retire ends the loop once it has no tunnels.
func (l *loop) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retired = true
	l.end()
}

func (l *loop) end() {
	if l.retired && l.open == 0 && !l.ended {
		l.ended = true
		_ = l.file.Close()
	}
}

// watch begins to watch one side of a tunnel, which has a slot.
func (l *loop) watch(t *Tunnel, side int) error {
	e := unix.EpollEvent{Events: interest, Fd: t.slot.index<<1 | int32(side), Pad: t.slot.serial} //nolint:gosec // 0 or 1
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.fd, unix.EPOLL_CTL_ADD, t.ends[side].fd, &e))
}
