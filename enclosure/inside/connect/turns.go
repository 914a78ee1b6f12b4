package connect

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// serve receives and answers calls, on a thread with its own root, directory and identity. ready, if not nil, receives the
// error of the setup, or nil.
func (s *Supervisor) serve(ready chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with its identity
	if unix.Gettid() == os.Getpid() {
		go s.serve(ready)
		select {} // the first thread cannot end before the process, and its root and user are shown as the process's
	}
	t, err := s.newThread()
	if ready != nil {
		ready <- err
	}
	for err == nil && s.serveNext(t) {
	}
	s.end(t)
}

// serveNext receives a call and handles it. It reports whether the thread should continue.
func (s *Supervisor) serveNext(t *thread) bool {
	s.mu.Lock()
	s.receivers++
	s.mu.Unlock()
	n, err := s.receive()
	if err != nil {
		os.Exit(1) // the end of this process ends the command, whose calls would get no answer
	}
	c := &call{s: s, notification: n, gone: make(chan struct{})}
	if s.admit(c) {
		c.work(t)
	} else {
		go c.waitForTurn()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.receivers < idleThreads
}

// admit registers a call, starts another receiver if necessary, and reports whether the calling thread may work on the
// call. An earlier call of the same thread was interrupted; it ends before this one begins.
func (s *Supervisor) admit(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receivers--
	before := s.calls[c.thread]
	switch {
	case before == nil:
		s.calls[c.thread] = c
	case int64(c.id-before.id) < 0: // before is newer, and was received by another thread: c was interrupted
		close(c.gone)
	default:
		close(before.gone)
		c.before = before
		if first := before.before; first != nil && !first.ended { // before has not begun, and never will
			c.before = first
		}
		s.calls[c.thread] = c
		s.changed.Broadcast()
	}
	last := s.receivers == 0 && s.total >= mostThreads
	if s.receivers == 0 && !last {
		s.total++
		go s.serve(nil)
	}
	if last || !s.mayWork(c, nil) {
		return false
	}
	s.working[c] = true
	return true
}

// mayWork reports whether a call may have a thread, since each process may only occupy a few. counts are the working calls
// by process; nil: not counted yet. The caller holds mu.
func (s *Supervisor) mayWork(c *call, counts map[int]int) bool {
	if len(s.working) < mostOfProcess {
		return true
	}
	if counts == nil {
		counts = s.countWorking()
	}
	return counts[s.groupOf(c)] < mostOfProcess
}

// countWorking counts the working calls by process. The caller holds mu.
func (s *Supervisor) countWorking() map[int]int {
	counts := map[int]int{}
	for c := range s.working {
		counts[s.groupOf(c)]++
	}
	return counts
}

// groupOf returns the process of a call. The caller holds mu.
func (s *Supervisor) groupOf(c *call) int {
	if c.group == 0 {
		c.group = -1
		if dir, err := open(s.proc, strconv.Itoa(int(c.thread)), unix.O_DIRECTORY); err == nil {
			if st, err := statusIn(dir); err == nil {
				c.group = st.process
			}
			_ = unix.Close(dir)
		}
	}
	return c.group
}

// waitForTurn waits until a thread works on the call.
func (c *call) waitForTurn() {
	c.turn = make(chan struct{})
	c.s.mu.Lock()
	c.s.queue = append(c.s.queue, c)
	c.s.giveTurns()
	c.s.mu.Unlock()
	late := time.NewTimer(patience)
	defer late.Stop()
	errno := unix.EAGAIN
	select {
	case <-c.turn:
		return
	case <-c.gone:
		errno = unix.EINTR
	case <-late.C:
	}
	c.s.mu.Lock()
	at := slices.Index(c.s.queue, c)
	if at >= 0 {
		c.s.queue = slices.Delete(c.s.queue, at, at+1)
	}
	c.s.mu.Unlock()
	if at >= 0 { // otherwise it has just got its turn
		c.finish(errno)
	}
}

// giveTurns passes waiting calls to helpers, the longest waiting first. The caller holds mu.
func (s *Supervisor) giveTurns() {
	if len(s.queue) == 0 {
		return
	}
	var counts map[int]int
	if len(s.working)+len(s.queue) > mostOfProcess {
		counts = s.countWorking()
	}
	room := true
	s.queue = slices.DeleteFunc(s.queue, func(c *call) bool {
		room = room && (s.helpers > 0 || s.total < mostThreads)
		if !room || !s.mayWork(c, counts) {
			return false
		}
		s.hand(c)
		if counts != nil {
			counts[s.groupOf(c)]++
		}
		close(c.turn)
		return true
	})
}

// hand passes a call to a helper; one is idle or can be started. The caller holds mu.
func (s *Supervisor) hand(c *call) {
	s.working[c] = true
	if s.helpers > 0 {
		s.helpers--
		s.tasks <- c // the channel has capacity for every helper
		return
	}
	s.total++
	go s.help(c)
}

// help works on a call, and on further calls, like [Supervisor.serve].
func (s *Supervisor) help(c *call) {
	runtime.LockOSThread() // never unlocked
	if unix.Gettid() == os.Getpid() {
		go s.help(c)
		select {}
	}
	t, err := s.newThread()
	for err == nil && c != nil {
		c.work(t)
		c = s.nextTask()
	}
	if c != nil {
		c.finish(unix.EAGAIN)
	}
	s.end(t)
}

// nextTask waits for a call. It returns nil if there are enough helpers.
func (s *Supervisor) nextTask() *call {
	s.mu.Lock()
	if s.helpers >= idleThreads {
		s.mu.Unlock()
		return nil
	}
	s.helpers++
	s.giveTurns()
	s.mu.Unlock()
	return <-s.tasks
}

// end closes a thread's descriptors and frees its slot.
func (s *Supervisor) end(t *thread) {
	t.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	s.giveTurns()
}

// work works on a call with a thread, until it is done or the connection is pending.
func (c *call) work(t *thread) {
	c.t = t
	errno := unix.EINTR
	if c.isNext() {
		errno = c.connect()
	}
	c.t = nil
	if errno != underWay {
		c.finish(errno)
		return
	}
	go c.await()
}

// isNext waits until the previous call of the same thread of the command has ended, so that its undelivered result is
// known. It returns false if this call was interrupted too.
func (c *call) isNext() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for c.before != nil && !c.before.ended && !c.isGone() {
		c.s.changed.Wait()
	}
	if c.isGone() {
		return false
	}
	c.before = nil
	return true
}

func (c *call) isGone() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// finish answers a call. If the caller is gone, the kernel drops the answer.
func (c *call) finish(errno unix.Errno) {
	c.closeSocket() // before the command gets the result: the command's own close must be the last one
	r := response{id: c.id, errno: -int32(errno)}
	if c.tried && !c.noted && errno == 0 { // before the caller can make another call
		c.s.keepConnected(c.thread, result{c.cookie, string(c.address), 0})
	}
	if err := ioctl(c.s.listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)); err != nil && c.tried { // interrupted
		c.s.keep(c.thread, result{c.cookie, string(c.address), errno})
	}
	c.close()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.ended = true
	c.s.changed.Broadcast()
	delete(c.s.working, c)
	if c.s.calls[c.thread] == c {
		delete(c.s.calls, c.thread)
	}
	if c.waited.counted {
		c.s.allWaiting--
		if own := c.s.groupOf(c); c.s.waiting[own] > 1 {
			c.s.waiting[own]--
		} else {
			delete(c.s.waiting, own)
		}
	}
	c.s.giveTurns()
}
