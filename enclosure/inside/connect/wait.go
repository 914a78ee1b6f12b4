package connect

import (
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pendingState is the state of a pending connection.
type pendingState struct {
	counted bool      // included in the counts of pending connections
	until   time.Time // when the command's socket times out (SO_SNDTIMEO); zero: never
	pause   time.Duration
}

// A server with a full queue gives no notice when it accepts again. So the connection is tried again, after pauses that
// double up to a maximum. The maximum grows with the number of waiting connections: all together make some 1,300 attempts a
// second at most.
const (
	firstPause      = time.Millisecond
	longestPause    = 50 * time.Millisecond
	waitersPerPause = 64 // longestPause applies up to this number of waiting connections
)

func (s *Supervisor) longestPause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return longestPause * time.Duration(max(s.allWaiting, waitersPerPause)) / waitersPerPause
}

// callerCheckInterval is how often a pending call checks that its caller still waits, since the kernel does not notify.
const callerCheckInterval = time.Second

// connectTo connects the command's socket without blocking. For a blocking socket, it returns errPending where a non-blocking
// one would get its error. During the attempt, the socket is non-blocking for its other users too, for some microseconds.
func (c *call) connectTo(address []byte) unix.Errno {
	errno := c.connectUnlessConnected(address)
	if errno == unix.EISCONN && c.s.popConnected(c.thread, c.cookie, c.address) {
		c.isRepeat = true
		return 0 // the answer arrived together with a signal, which the kernel preferred, so the caller repeats the call
	}
	return errno
}

func (c *call) connectUnlessConnected(address []byte) unix.Errno {
	kind, err := unix.GetsockoptInt(c.socket, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return errnoOf(err)
	}
	c.lockSocket()
	defer c.unlockSocket()
	flags, err := unix.FcntlInt(uintptr(c.socket), unix.F_GETFL, 0)
	if err != nil {
		return errnoOf(err)
	}
	c.attempted = true
	switch {
	case kind != unix.SOCK_STREAM && kind != unix.SOCK_SEQPACKET:
		return c.connectOnce(address)
	case flags&unix.O_NONBLOCK != 0:
		return c.withoutBlocking(flags, func() unix.Errno { return c.connectOnce(address) })
	}
	errno := c.withoutBlocking(flags, func() unix.Errno {
		errno := c.connectOnce(address)
		if errno == unix.EINPROGRESS || errno == unix.EALREADY { // most connections are complete now, or soon
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(c.socket), Events: unix.POLLOUT}}, 1)
			if errno = c.connectOnce(address); errno == unix.EISCONN {
				errno = 0
			}
		}
		return errno
	})
	if _, err := unix.FcntlInt(uintptr(c.socket), unix.F_SETFL, flags); err != nil {
		return errnoOf(err)
	}
	if errno == unix.EINPROGRESS || errno == unix.EALREADY || errno == unix.EAGAIN && c.family == unix.AF_UNIX {
		return errPending
	}
	return errno
}

// maxConnectTime is how long a non-blocking connect(2) may take before it is interrupted.
const maxConnectTime = 100 * time.Millisecond

// withoutBlocking runs f, which connects the socket, while the socket is non-blocking. The command can make it block again
// at any time, through another descriptor: then the hanging call is interrupted, and restarted without blocking.
func (c *call) withoutBlocking(flags int, f func() unix.Errno) unix.Errno {
	dontBlock := func() error {
		_, err := unix.FcntlInt(uintptr(c.socket), unix.F_SETFL, flags|unix.O_NONBLOCK)
		return err
	}
	if flags&unix.O_NONBLOCK == 0 {
		if err := dontBlock(); err != nil {
			return errnoOf(err)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	var mu sync.Mutex // guards running, and is held while f may be interrupted
	running := true
	var look *time.Timer
	mu.Lock()
	look = time.AfterFunc(maxConnectTime, func() {
		mu.Lock()
		defer mu.Unlock()
		if running {
			_ = dontBlock()
			_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG) // as the runtime does for goroutines; the kernel restarts the call
			look.Reset(maxConnectTime)
		}
	})
	mu.Unlock()
	errno := f()
	mu.Lock()
	defer mu.Unlock()
	running = false
	look.Stop()
	return errno
}

// connectOnce calls connect(2).
func (c *call) connectOnce(address []byte) unix.Errno {
	pointer := unsafe.Pointer(unsafe.SliceData(address))
	for {
		_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(c.socket), uintptr(pointer), uintptr(len(address)))
		if errno != unix.EINTR { // caused by signals of the Go runtime
			return errno
		}
	}
}

// lockSocket waits until no other call connects the same socket.
func (c *call) lockSocket() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for c.s.connecting[c.cookie] {
		c.s.changed.Wait()
	}
	c.s.connecting[c.cookie] = true
}

func (c *call) unlockSocket() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	delete(c.s.connecting, c.cookie)
	c.s.changed.Broadcast()
}

// awaitConnected waits for a pending connection, and answers the call.
func (c *call) awaitConnected() {
	if !c.registerPending() {
		c.answer(unix.EAGAIN)
		return
	}
	if c.family == unix.AF_UNIX {
		c.pending.pause = min(max(2*c.pending.pause, firstPause), c.s.longestPause())
		if errno := c.waitUntil(time.After(c.pending.pause), unix.EAGAIN); errno != errPending {
			c.answer(errno)
			return
		}
		c.waitForThread()
		return
	}
	errno := errPending
	for errno == errPending {
		ready, err := c.s.poller.add(c.socket)
		if err != nil {
			errno = errnoOf(err)
			break
		}
		if errno = c.waitUntil(ready, unix.EINPROGRESS); errno == errPending {
			errno = c.connectTo(c.address)
		}
		c.s.poller.remove(c.socket)
	}
	c.answer(errno)
}

// registerPending registers a pending connection and frees the thread. It returns false if too many calls wait.
func (c *call) registerPending() bool {
	c.closeProcess() // so that a pending call keeps few descriptors
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	delete(c.s.working, c)
	c.s.assignQueued()
	if c.pending.counted {
		return true
	}
	timeout, err := unix.GetsockoptTimeval(c.socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
	if err == nil && timeout.Nano() > 0 {
		c.pending.until = time.Now().Add(time.Duration(timeout.Nano()))
	}
	own := c.s.processOf(c)
	if c.s.allWaiting >= maxPending || c.s.waiting[own] >= maxPendingPerProcess {
		return false
	}
	c.s.allWaiting++
	c.s.waiting[own]++
	c.pending.counted = true
	return true
}

// waitUntil waits for a channel and returns errPending, or timedOut if the command's socket times out before.
func (c *call) waitUntil(ready <-chan time.Time, timedOut unix.Errno) unix.Errno {
	c.attempted = false // no attempt has been made whose result could be lost
	var giveUp <-chan time.Time
	if !c.pending.until.IsZero() {
		timer := time.NewTimer(time.Until(c.pending.until))
		defer timer.Stop()
		giveUp = timer.C
	}
	look := time.NewTicker(callerCheckInterval)
	defer look.Stop()
	for {
		select {
		case <-ready:
			return errPending
		case <-giveUp:
			return timedOut
		case <-c.interrupted:
			return unix.EINTR
		case <-look.C:
			if !c.isWaiting() {
				return unix.EINTR
			}
		}
	}
}

// poller reports when connecting sockets are ready.
type poller struct {
	fd int

	mu    sync.Mutex
	ready map[int32]chan time.Time
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	p := &poller{fd: fd, ready: map[int32]chan time.Time{}}
	go p.run()
	return p, nil
}

func (p *poller) run() {
	events := make([]unix.EpollEvent, 64)
	for {
		n, _ := unix.EpollWait(p.fd, events, -1)
		p.mu.Lock()
		for _, e := range events[:max(n, 0)] {
			select {
			case p.ready[e.Fd] <- time.Time{}: // or of another socket with the same number, which tries again and waits on
			default:
			}
		}
		p.mu.Unlock()
	}
}

// add returns a channel that receives once, when a socket is connected or refused.
func (p *poller) add(socket int) (<-chan time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ready := make(chan time.Time, 1)
	p.ready[int32(socket)] = ready
	e := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: int32(socket)}
	return ready, unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, socket, &e)
}

func (p *poller) remove(socket int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ready, int32(socket))
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, socket, nil)
}
