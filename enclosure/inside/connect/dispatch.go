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
	s.removeThread(t)
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
	c := &call{s: s, notification: n, interrupted: make(chan struct{})}
	if s.registerCall(c) {
		c.handle(t)
	} else {
		go c.waitForThread()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.receivers < idleThreads
}

// registerCall registers a call, starts another receiver if necessary, and reports whether the calling thread may work on the
// call. An earlier call of the same thread was interrupted; it ends before this one begins.
func (s *Supervisor) registerCall(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receivers--
	before := s.calls[c.thread]
	switch {
	case before == nil:
		s.calls[c.thread] = c
	case int64(c.id-before.id) < 0: // before is newer, and was received by another thread: c was interrupted
		close(c.interrupted)
	default:
		close(before.interrupted)
		c.previous = before
		if first := before.previous; first != nil && !first.ended { // before has not begun, and never will
			c.previous = first
		}
		s.calls[c.thread] = c
		s.changed.Broadcast()
	}
	last := s.receivers == 0 && s.total >= maxThreads
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
	if len(s.working) < maxThreadsPerProcess {
		return true
	}
	if counts == nil {
		counts = s.countWorking()
	}
	return counts[s.processOf(c)] < maxThreadsPerProcess
}

// countWorking counts the working calls by process. The caller holds mu.
func (s *Supervisor) countWorking() map[int]int {
	counts := map[int]int{}
	for c := range s.working {
		counts[s.processOf(c)]++
	}
	return counts
}

// processOf returns the process of a call. The caller holds mu.
func (s *Supervisor) processOf(c *call) int {
	if c.processID == 0 {
		c.processID = -1
		if dir, err := open(s.proc, strconv.Itoa(int(c.thread)), unix.O_DIRECTORY); err == nil {
			if st, err := statusIn(dir); err == nil {
				c.processID = st.process
			}
			_ = unix.Close(dir)
		}
	}
	return c.processID
}

// waitForThread waits until a thread works on the call.
func (c *call) waitForThread() {
	c.assigned = make(chan struct{})
	c.s.mu.Lock()
	c.s.queue = append(c.s.queue, c)
	c.s.assignQueued()
	c.s.mu.Unlock()
	late := time.NewTimer(threadTimeout)
	defer late.Stop()
	errno := unix.EAGAIN
	select {
	case <-c.assigned:
		return
	case <-c.interrupted:
		errno = unix.EINTR
	case <-late.C:
	}
	c.s.mu.Lock()
	at := slices.Index(c.s.queue, c)
	if at >= 0 {
		c.s.queue = slices.Delete(c.s.queue, at, at+1)
	}
	c.s.mu.Unlock()
	if at >= 0 { // otherwise it has just been assigned
		c.answer(errno)
	}
}

// assignQueued passes waiting calls to helpers, the longest waiting first. The caller holds mu.
func (s *Supervisor) assignQueued() {
	if len(s.queue) == 0 {
		return
	}
	var counts map[int]int
	if len(s.working)+len(s.queue) > maxThreadsPerProcess {
		counts = s.countWorking()
	}
	room := true
	s.queue = slices.DeleteFunc(s.queue, func(c *call) bool {
		room = room && (s.helpers > 0 || s.total < maxThreads)
		if !room || !s.mayWork(c, counts) {
			return false
		}
		s.passToHelper(c)
		if counts != nil {
			counts[s.processOf(c)]++
		}
		close(c.assigned)
		return true
	})
}

// passToHelper passes a call to a helper; one is idle or can be started. The caller holds mu.
func (s *Supervisor) passToHelper(c *call) {
	s.working[c] = true
	if s.helpers > 0 {
		s.helpers--
		s.tasks <- c // the channel has capacity for every helper
		return
	}
	s.total++
	go s.runHelper(c)
}

// runHelper works on a call, and on further calls, like [Supervisor.serve].
func (s *Supervisor) runHelper(c *call) {
	runtime.LockOSThread() // never unlocked
	if unix.Gettid() == os.Getpid() {
		go s.runHelper(c)
		select {}
	}
	t, err := s.newThread()
	for err == nil && c != nil {
		c.handle(t)
		c = s.nextTask()
	}
	if c != nil {
		c.answer(unix.EAGAIN)
	}
	s.removeThread(t)
}

// nextTask waits for a call. It returns nil if there are enough helpers.
func (s *Supervisor) nextTask() *call {
	s.mu.Lock()
	if s.helpers >= idleThreads {
		s.mu.Unlock()
		return nil
	}
	s.helpers++
	s.assignQueued()
	s.mu.Unlock()
	return <-s.tasks
}

// removeThread closes a thread's descriptors and frees its slot.
func (s *Supervisor) removeThread(t *thread) {
	t.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	s.assignQueued()
}

// handle works on a call with a thread, until it is done or the connection is pending.
func (c *call) handle(t *thread) {
	c.t = t
	errno := unix.EINTR
	if c.awaitPrevious() {
		errno = c.connect()
	}
	c.t = nil
	if errno != errPending {
		c.answer(errno)
		return
	}
	go c.awaitConnected()
}

// awaitPrevious waits until the previous call of the same thread of the command has ended, so that its undelivered result is
// known. It returns false if this call was interrupted too.
func (c *call) awaitPrevious() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for c.previous != nil && !c.previous.ended && !c.isInterrupted() {
		c.s.changed.Wait()
	}
	if c.isInterrupted() {
		return false
	}
	c.previous = nil
	return true
}

func (c *call) isInterrupted() bool {
	select {
	case <-c.interrupted:
		return true
	default:
		return false
	}
}

// answer answers a call. If the caller is gone, the kernel drops the answer.
func (c *call) answer(errno unix.Errno) {
	c.closeSocket() // before the command gets the result: the command's own close must be the last one
	r := response{id: c.id, errno: -int32(errno)}
	if c.attempted && !c.isRepeat && errno == 0 { // before the caller can make another call
		c.s.storeConnected(c.thread, result{c.cookie, string(c.address), 0})
	}
	if err := ioctl(c.s.listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)); err != nil && c.attempted { // interrupted
		c.s.storeUndelivered(c.thread, result{c.cookie, string(c.address), errno})
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
	if c.pending.counted {
		c.s.allWaiting--
		if own := c.s.processOf(c); c.s.waiting[own] > 1 {
			c.s.waiting[own]--
		} else {
			delete(c.s.waiting, own)
		}
	}
	c.s.assignQueued()
}
