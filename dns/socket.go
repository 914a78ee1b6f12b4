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

// socket is a UDP socket that the runtime's poller does not know. The poller is woken for every datagram that arrives and
// for every one that has left, whether anybody waits for it or not, which costs more than the queries do. A read blocks a
// thread instead.
type socket struct {
	fd      int
	threads *os.File // the directory of this process's threads: when leave needs it no descriptor may be free

	mu       sync.Mutex
	released bool
}

// leaving is how long a read may wait once the socket is left.
const leaving = 20 * time.Millisecond

// leave makes reads return soon, whether or not anything arrives, and leaves the socket usable for the process that it is
// passed on to, now or by the service manager ([Resume]). The kernel looks at the limit when a read begins, so the one that waits
// is begun again: a signal to its thread does that. The runtime sends the same one to preempt goroutines, and expects ones that it
// did not send. It returns once nobody reads the socket: the kernel may leave a thread out of its list while others end.
func (s *socket) leave() {
	for s.interrupt() {
		time.Sleep(leaving)
	}
}

// interrupt has the read that waits begin again, and reports whether somebody may still be reading.
func (s *socket) interrupt() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return false
	}
	limit := unix.NsecToTimeval(leaving.Nanoseconds())
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

// Resume makes a socket usable in the ordinary way that another process has served.
func Resume(pc syscall.Conn) error {
	return control(pc, func(fd int) error {
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{})
	})
}

// takeOver returns the socket of pc, which it closes.
func takeOver(pc net.PacketConn) (*socket, error) {
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

// release has leave change nothing from now on: who reads the socket may be another process. Answers may still be sent.
func (s *socket) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = true
}

func (s *socket) close() error {
	s.release()
	return errors.Join(unix.Close(s.fd), s.threads.Close())
}

// send sends a datagram, which is lost like any other if that fails.
func (s *socket) send(wire []byte, to netip.AddrPort) {
	_ = unix.Sendto(s.fd, wire, unix.MSG_DONTWAIT, sockaddr(to))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// receiveBuffer holds what arrives while the server is not scheduled.
const receiveBuffer = 4 << 20

// enlarge gives the socket a receive buffer beyond the system's limit, which takes privilege, or up to that limit.
func (s *socket) enlarge() {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // as it is otherwise
	}
}
