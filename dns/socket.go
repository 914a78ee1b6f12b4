package dns

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a UDP socket outside the runtime's poller. The poller wakes for every datagram that arrives or leaves, even
// if no goroutine waits for it, which costs more than answering the queries. A read blocks a thread instead.
type socket struct {
	fd      int
	threads *os.File // /proc/self/task, opened early: stopReading may run without a free file descriptor

	mu       sync.Mutex
	released bool
}

// stopTimeout is how long a read may block once stopReading has been called.
const stopTimeout = 20 * time.Millisecond

// stopReading makes reads return soon, whether or not anything arrives, and leaves the socket usable for the process
// that receives it, now or from the service manager ([ResumeSocket]). The kernel applies a new receive timeout only when a
// read begins, so stopReading restarts a blocked read by a signal to its thread. It is SIGURG, which the runtime uses
// to preempt goroutines and tolerates from other senders. stopReading returns once the socket has no reader; until then
// it repeats the signals, because the kernel may omit a thread from the directory while others exit.
func (s *socket) stopReading() {
	for s.interruptReads() {
		time.Sleep(stopTimeout)
	}
}

// interruptReads restarts a blocked read, and reports whether a read may still be in progress.
func (s *socket) interruptReads() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return false
	}
	limit := unix.NsecToTimeval(stopTimeout.Nanoseconds())
	_ = unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	_, _ = s.threads.Seek(0, io.SeekStart)
	ids, _ := s.threads.Readdirnames(-1)
	for _, name := range ids {
		if id, err := strconv.Atoi(name); err == nil {
			_ = unix.Tgkill(unix.Getpid(), id, unix.SIGURG)
		}
	}
	return true
}

// ResumeSocket resets a socket that another process has served and left.
func ResumeSocket(pc syscall.Conn) error {
	return control(pc, func(fd int) error {
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{})
	})
}

// newSocket duplicates the socket of pc and closes pc.
func newSocket(pc net.PacketConn) (*socket, error) {
	defer pc.Close()
	conn, ok := pc.(*net.UDPConn)
	if !ok {
		return nil, fmt.Errorf("dns: cannot serve queries on a %T", pc)
	}
	threads, err := os.Open("/proc/self/task")
	if err != nil {
		return nil, fmt.Errorf("dns: list the threads: %w", err)
	}
	s := &socket{threads: threads}
	err = control(conn, func(fd int) (err error) {
		s.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dns: take over a socket: %w", err), threads.Close())
	}
	if err := unix.SetNonblock(s.fd, false); err != nil {
		return nil, errors.Join(fmt.Errorf("dns: make a socket block: %w", err), s.close())
	}
	return s, nil
}

// release makes stopReading a no-op from now on, because another process may be reading the socket. Answers may still be
// sent.
func (s *socket) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = true
}

func (s *socket) close() error {
	s.release()
	return errors.Join(unix.Close(s.fd), s.threads.Close())
}

// send sends a datagram. On failure the datagram is lost like any other.
func (s *socket) send(wire []byte, to netip.AddrPort) {
	_ = unix.Sendto(s.fd, wire, unix.MSG_DONTWAIT, sockaddr(to))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// receiveBuffer is the receive buffer in bytes, for datagrams that arrive while the server is not scheduled.
const receiveBuffer = 4 << 20

// enlargeBuffer sets the receive buffer beyond the system's limit if the process is privileged, else up to that limit.
func (s *socket) enlargeBuffer() {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // the default remains if this fails
	}
}
