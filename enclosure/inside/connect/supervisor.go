// Package connect makes the connections of a command for it. The kernel passes every connect(2) of the command to a
// [Supervisor] (seccomp user notification), which reads the address once, finds and judges the object that it leads to, and
// connects the command's own socket to it with the command's own rights. So a Unix socket is judged as an object,
// regardless of its name, the time of its binding, and the path or mount that leads to it. The command can reach sockets that
// its own processes have bound, and sockets that its caller has allowed.
//
// The supervisor never lets the kernel continue a call that it has examined (SECCOMP_USER_NOTIF_FLAG_CONTINUE): another
// thread of the command could exchange the address or the descriptor in between. That is why connections over IP are made
// here, too.
//
// A blocked call must not delay others. No thread waits for a connection: sockets are connected without blocking, and a
// goroutine waits for the rest. Only files can block a thread, if their file system is in user space (FUSE) and never
// answers: a path, or memory that is mapped from a file. The number of threads that a process of the command can block is
// limited, and calls fail if no thread is left. A blocked thread cannot even be killed; that is why the supervisor is a
// separate process: everything else can end without it.
//
// Datagrams have their destination in sendmsg(2), behind a pointer that a filter cannot follow: the filter refuses Unix
// sockets of that kind instead.
package connect

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Supervisor answers the calls of one command. It must run as root in the PID, network, mount and user namespaces that the
// command starts in.
type Supervisor struct {
	listener      int // of the seccomp filter
	proc          int // /proc
	root          int // root directory for the supervisor's own paths
	netns, userns Object
	allowed       []Object // allowed by the caller; the process that opened them keeps their files open
	onRefused     func(path string)
	poller        *poller

	mu             sync.Mutex
	changed        sync.Cond // with mu: a call has ended, was interrupted, or has released a socket
	calls          map[uint32]*call
	working        map[*call]bool // calls that have a thread
	waiting        map[int]int    // pending connections, by process of the command
	allWaiting     int
	connecting     map[uint64]bool       // sockets, by cookie
	receivers      int                   // threads that wait for calls
	helpers        int                   // threads that wait for tasks
	total          int                   // threads
	tasks          chan *call            // for helpers
	queue          []*call               // calls that wait for a thread
	boundFiles     map[Object]uint64     // files that the command has bound, with the socket's cookie
	boundElsewhere map[Object]descriptor // files that the command has bound in other network namespaces
	undelivered    map[uint32]result     // by thread of the command
	connected      map[uint32]result     // the last successful connection of each thread
	refused        map[string]bool
}

// Bounds on the resources that a command can make the supervisor use.
const (
	maxThreads           = 256 // of the supervisor
	maxThreadsPerProcess = 16  // threads that calls of one process of the command occupy
	idleThreads          = 4
	maxPending           = 4096 // pending connections that threads of the command wait for
	maxPendingPerProcess = 1024 // of one process
	maxBoundFiles        = 1024
	maxUndelivered       = 1024
	maxRefused           = 256
)

// threadTimeout is how long a call waits for a thread before it fails with EAGAIN.
const threadTimeout = 5 * time.Second

// result is the result of a call that was interrupted by a signal before it got its answer. The kernel restarts most such
// calls.
type result struct {
	socket  uint64 // its cookie
	address string
	errno   unix.Errno
}

// Open opens the Unix sockets at the given paths, and keeps them open, so that a socket that takes over such a path later
// is another object.
func Open(reach []string) (out []Object, err error) {
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
		out = append(out, at)
	}
	return out, nil
}

// Start answers the calls that the filter's listener reports, until this process ends. In addition to its own sockets, the
// command may reach the given ones. onRefused is called once for each path of a socket that was refused, concurrently.
func Start(listener int, reach []Object, onRefused func(path string)) (err error) {
	s := &Supervisor{
		listener: listener, allowed: reach, onRefused: onRefused,
		calls: map[uint32]*call{}, working: map[*call]bool{}, waiting: map[int]int{}, connecting: map[uint64]bool{}, tasks: make(chan *call, maxThreads),
		boundFiles: map[Object]uint64{}, boundElsewhere: map[Object]descriptor{}, undelivered: map[uint32]result{}, connected: map[uint32]result{}, refused: map[string]bool{},
	}
	s.changed.L = &s.mu
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
	if s.poller, err = newPoller(); err != nil {
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
	_ = unix.IoctlSetInt(listener, unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP) // faster; since Linux 6.6
	s.total = 1
	ready := make(chan error, 1)
	go s.serve(ready)
	return <-ready
}

// needTracing fails if the host's configuration makes the command's descriptors inaccessible even to root.
func needTracing() error {
	data, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err == nil && strings.TrimSpace(string(data)) == "3" {
		return errors.New("kernel.yama.ptrace_scope is 3, which keeps gateway run from making connections for the command: set it to 2 or less and restart the host")
	}
	return nil
}

// storeUndelivered records a result that could not be delivered.
func (s *Supervisor) storeUndelivered(thread uint32, r result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.undelivered) >= maxUndelivered {
		clear(s.undelivered)
	}
	s.undelivered[thread] = r
}

// popUndelivered returns and removes the undelivered result of the same call by the same thread.
func (s *Supervisor) popUndelivered(thread uint32, socket uint64, address []byte) (unix.Errno, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.undelivered[thread]
	delete(s.undelivered, thread)
	return r.errno, ok && r.socket == socket && r.address == string(address)
}

// storeConnected records a successful connection of a thread.
func (s *Supervisor) storeConnected(thread uint32, r result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.connected) >= maxUndelivered {
		clear(s.connected)
	}
	s.connected[thread] = r
}

// popConnected reports, once, whether the last successful connection of a thread was of that socket to that address.
func (s *Supervisor) popConnected(thread uint32, socket uint64, address []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.connected[thread]
	delete(s.connected, thread)
	return ok && r.socket == socket && r.address == string(address)
}

// reportRefused reports the refusal of a socket, once per path.
func (s *Supervisor) reportRefused(path string) {
	s.mu.Lock()
	first := !s.refused[path] && len(s.refused) < maxRefused
	if first {
		s.refused[path] = true
	}
	s.mu.Unlock()
	if first {
		s.onRefused(path)
	}
}
