// Package connect makes the connections of a command for it. The kernel hands every connect(2) of the command to a [Supervisor]
// (seccomp user notification), which reads the address once, finds the object that it leads to, judges that, and connects the
// command's own socket to it with the command's own rights. So a Unix socket is judged as an object, whatever it was called when
// it was bound, whenever that was, and by whatever path or mount it is seen. The command reaches the sockets that its own processes
// have bound, and the ones that its caller has named.
//
// The kernel is never told to go on with a call that was looked at (SECCOMP_USER_NOTIF_FLAG_CONTINUE): another thread of the command
// could exchange the address or the descriptor in between. That is why connections over IP are made here, too.
//
// Datagrams name their destination in sendmsg(2), behind a pointer that no filter can follow: the filter refuses Unix sockets
// of that kind instead.
package connect

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Supervisor answers the calls of one command. It must be in the PID, network, mount and user namespaces that the command begins in,
// as root.
type Supervisor struct {
	listener      int // that the kernel has returned for the filter
	proc          int // /proc
	root          int // where the supervisor's own paths begin
	netns, userns object
	reach         []object // that the caller has named; their files are held open
	onRefused     func(path string)

	mu          sync.Mutex
	ended       sync.Cond // with mu: of an attempt
	underway    map[attempt]bool
	idle, total int               // threads
	known       map[object]uint64 // files that the command has bound: the cookie of the socket
	undelivered map[uint32]result // by thread of the command
	refused     map[string]bool
}

// Bounds on the resources that a command can make the supervisor use.
const (
	mostThreads     = 256 // which connect; each waits for that if the command's socket is blocking, and further calls wait for a thread
	idleThreads     = 4
	mostKnown       = 1024
	mostUndelivered = 1024
	mostRefused     = 256
)

// attempt is a thread of the command that connects a socket. Where a signal interrupts it, the kernel begins it anew while the old one may
// still be under way here.
type attempt struct {
	thread uint32
	socket uint64 // its cookie
}

// result is the end of a call that was interrupted by a signal before it got its answer. The kernel makes most such calls again.
type result struct {
	socket  uint64 // its cookie
	address string
	errno   unix.Errno
}

// Open returns a supervisor of a command that may reach the Unix sockets at the given paths, besides its own. They are opened here:
// another socket that takes such a path later is refused.
func Open(reach []string) (*Supervisor, error) {
	s := &Supervisor{underway: map[attempt]bool{}, known: map[object]uint64{}, undelivered: map[uint32]result{}, refused: map[string]bool{}}
	s.ended.L = &s.mu
	for _, path := range reach {
		fd, err := open(unix.AT_FDCWD, path, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		at, kind, err := stat(fd)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if kind != unix.S_IFSOCK {
			return nil, fmt.Errorf("%s is not a Unix socket", path)
		}
		s.reach = append(s.reach, at)
	}
	return s, nil
}

// Start answers the calls that a filter notifies of until this process ends. onRefused is called once for each path of a
// socket that was refused, concurrently.
func (s *Supervisor) Start(listener int, onRefused func(path string)) (err error) {
	s.listener, s.onRefused = listener, onRefused
	if s.proc, err = open(unix.AT_FDCWD, "/proc", unix.O_DIRECTORY); err != nil {
		return err
	}
	if s.root, err = open(unix.AT_FDCWD, "/", unix.O_DIRECTORY); err != nil {
		return err
	}
	if s.netns, err = statAt(s.proc, "thread-self/ns/net"); err != nil {
		return err
	}
	if s.userns, err = statAt(s.proc, "thread-self/ns/user"); err != nil {
		return err
	}
	if err := needTracing(); err != nil {
		return err
	}
	diag, err := dial()
	if err != nil {
		return err
	}
	defer unix.Close(diag)
	if _, err := listening(diag); err != nil {
		return fmt.Errorf("the kernel does not list Unix sockets; load its module unix_diag (CONFIG_UNIX_DIAG): %w", err)
	}
	_ = ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP) // faster; since Linux 6.6
	return <-s.another()
}

// needTracing says if the host's configuration keeps the command's descriptors from everybody, root included.
func needTracing() error {
	data, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err == nil && strings.TrimSpace(string(data)) == "3" {
		return errors.New("kernel.yama.ptrace_scope is 3, so that nobody can connect for the command: gateway run needs 2 or less, which takes a restart of the host")
	}
	return nil
}

// another starts another thread. The channel gets its error, or nil once it waits for calls.
func (s *Supervisor) another() <-chan error {
	ready := make(chan error, 1)
	s.mu.Lock()
	s.total++
	s.mu.Unlock()
	go s.work(ready)
	return ready
}

// work answers calls on a thread that has a root, a directory and an identity of its own.
func (s *Supervisor) work(ready chan<- error) {
	runtime.LockOSThread() // and never unlocked: the thread ends with its identity
	if unix.Gettid() == os.Getpid() {
		go s.work(ready)
		select {} // the first thread cannot end before the process, and its root and user are shown as the process's
	}
	t, err := s.newThread()
	ready <- err
	for err == nil && s.answerNext(t) {
	}
	t.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
}

// answerNext waits for a call and answers it. It reports whether the thread is to go on.
func (s *Supervisor) answerNext(t *thread) bool {
	s.setIdle(1)
	n, err := s.receive()
	if s.setIdle(-1) {
		s.another() // an error leaves the calls to the threads that there are
	}
	if err != nil {
		os.Exit(1) // with this process ends the command, whose calls would get no answer
	}
	c := &call{s: s, t: t, notification: n}
	errno := c.connect()
	c.closeSocket() // before the command learns of the result: its own close is to be the last one
	r := response{id: n.id, errno: -int32(errno)}
	if err := ioctl(s.listener, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r))); err != nil && c.tried { // interrupted
		s.keep(n.thread, result{c.cookie, string(c.address), errno})
	}
	c.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idle < idleThreads
}

// setIdle counts the threads that wait for calls, and reports whether there should be more.
func (s *Supervisor) setIdle(change int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle += change
	return s.idle == 0 && s.total < mostThreads
}

// keep notes the result of a call that could not be delivered.
func (s *Supervisor) keep(thread uint32, r result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.undelivered) >= mostUndelivered {
		clear(s.undelivered)
	}
	s.undelivered[thread] = r
}

// begin waits until no call of the same attempt is under way.
func (s *Supervisor) begin(a attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.underway[a] {
		s.ended.Wait()
	}
	s.underway[a] = true
}

func (s *Supervisor) end(a attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.underway, a)
	s.ended.Broadcast()
}

// kept returns the result of the same call by the same thread, if it was not delivered, once.
func (s *Supervisor) kept(thread uint32, socket uint64, address []byte) (unix.Errno, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.undelivered[thread]
	delete(s.undelivered, thread)
	return r.errno, ok && r.socket == socket && r.address == string(address)
}

// refuse notes that a socket was refused.
func (s *Supervisor) refuse(path string) {
	s.mu.Lock()
	first := !s.refused[path] && len(s.refused) < mostRefused
	if first {
		s.refused[path] = true
	}
	s.mu.Unlock()
	if first {
		s.onRefused(path)
	}
}
