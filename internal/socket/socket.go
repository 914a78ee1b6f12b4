// Package socket finds the TCP connection below a net.Conn and closes it so that the peer sees the intended end: a
// graceful close, a reset, or a close after the last message was read. [Direct] reads and writes such a connection, and
// [Owned] tracks its owner.
package socket

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TCP returns the TCP connection that c is or wraps.
func TCP(c net.Conn) (*net.TCPConn, bool) {
	switch c := c.(type) {
	case *net.TCPConn:
		return c, true
	case interface{ NetConn() net.Conn }:
		return TCP(c.NetConn())
	default:
		return nil, false
	}
}

// Reset closes connections with RST, so that their peers do not mistake the end for success.
func Reset(conns ...net.Conn) {
	for _, c := range conns {
		t, ok := TCP(c)
		if !ok {
			_ = c.Close()
			continue
		}
		_ = t.SetLinger(0) // fails only on a closed socket
		_ = t.Close()      // not c: a TLS close_notify would signal success
	}
}

// Abort interrupts all pending reads and writes of the connections. It never blocks: TLS sends no close_notify.
func Abort(conns ...net.Conn) {
	for _, c := range conns {
		if tcp, ok := TCP(c); ok {
			_ = tcp.Close()
			continue
		}
		_ = c.Close()
	}
}

// CloseWrite closes the sending side of c. Reads continue to work.
func CloseWrite(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	} else if tcp, ok := TCP(c); ok {
		_ = tcp.CloseWrite()
	}
}

const (
	// LingerTime bounds how long [LingeringClose] reads, and how long sending a last message may take.
	LingerTime  = 500 * time.Millisecond
	lingerBytes = 64 << 10
)

// LingeringClose closes a connection whose last message the peer must be able to read. Closing a socket with unread
// data resets it, and the reset can overtake that message (RFC 9112, section 9.6). So it closes the sending side first
// and briefly reads the remaining data.
func LingeringClose(c *net.TCPConn) {
	_ = c.CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(LingerTime))
	_, _ = io.CopyN(io.Discard, struct{ io.Reader }{c}, lingerBytes)
	_ = c.Close()
}

// The functions in this part make system calls on bare descriptors without entering the Go scheduler (see [Direct]).
// They never block on the peer, retry after EINTR, and return a [syscall.Errno].

// Recv reads the available bytes of a TCP socket. It returns 0, nil at the end of the stream.
func Recv(fd int, b []byte) (int, error) {
	n, errno := transmit(syscall.SYS_RECVFROM, uintptr(fd), b, 0)
	return n, asError(errno)
}

// Send writes as many bytes as the send buffer of a TCP socket accepts.
func Send(fd int, b []byte) (int, error) {
	n, errno := transmit(syscall.SYS_SENDTO, uintptr(fd), b, syscall.MSG_NOSIGNAL)
	return n, asError(errno)
}

// Splice moves up to n bytes between a socket and a pipe (splice(2)). Both must be in non-blocking mode.
func Splice(from, to, n int) (int, error) {
	for {
		moved, _, errno := syscall.RawSyscall6(syscall.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), unix.SPLICE_F_NONBLOCK)
		if errno != syscall.EINTR {
			return count(moved, errno)
		}
	}
}

// Events stores the pending events of an epoll instance in events and returns their number. It does not wait.
func Events(epoll int, events []unix.EpollEvent) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
		if errno != syscall.EINTR {
			return count(n, errno)
		}
	}
}

// Quiet reports whether a socket has neither unread data nor an unread end of stream.
func Quiet(fd int) bool {
	look := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}} //nolint:gosec // a descriptor
	var now unix.Timespec
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&look[0])), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		if errno != syscall.EINTR {
			return n == 0 && errno == 0
		}
	}
}

// Connect starts connecting a non-blocking socket and returns EINPROGRESS. The address must have the family of the
// socket.
func Connect(fd int, to netip.AddrPort) error {
	var at unsafe.Pointer
	var size uintptr
	if to.Addr().Is4() {
		sa := syscall.RawSockaddrInet4{Family: syscall.AF_INET, Addr: to.Addr().As4()}
		putPort(&sa.Port, to.Port())
		at, size = unsafe.Pointer(&sa), syscall.SizeofSockaddrInet4
	} else {
		sa := syscall.RawSockaddrInet6{Family: syscall.AF_INET6, Addr: to.Addr().As16()}
		putPort(&sa.Port, to.Port())
		at, size = unsafe.Pointer(&sa), syscall.SizeofSockaddrInet6
	}
	_, _, errno := syscall.RawSyscall(syscall.SYS_CONNECT, uintptr(fd), uintptr(at), size)
	return asError(errno)
}

// Finish closes the sending side of a socket (shutdown(2)).
func Finish(fd int) error {
	_, _, errno := syscall.RawSyscall(syscall.SYS_SHUTDOWN, uintptr(fd), syscall.SHUT_WR, 0)
	return asError(errno)
}

// Close closes a socket or pipe immediately.
func Close(fd int) { _, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(fd), 0, 0) }

// putPort writes a port in network byte order.
func putPort(to *uint16, port uint16) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(to))[:], port)
}

func count(n uintptr, errno syscall.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func asError(errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// The functions in this part detect a peer that vanished: its host is gone, or a NAT or firewall forgot the connection.
// Such a peer sends no reset, and the kernel retransmits for about 15 minutes (tcp_retries2).
//
// TCP_USER_TIMEOUT would also end connections to a live peer that does not read for that long, for example during a
// paused upload (tcp(7): "buffered data may remain untransmitted (due to zero window size)").

const (
	// LostAfter is how long a peer may leave data unacknowledged or keep-alive probes unanswered.
	LostAfter = 20 * time.Second
	// VanishedAfter is when a silent peer is probably gone: requests that are safe to repeat move to another
	// connection.
	VanishedAfter = 700 * time.Millisecond
	// VanishedLook is when to check for [VanishedAfter] after sending.
	VanishedLook = 1500 * time.Millisecond

	keepAliveIdle     = 15 * time.Second
	keepAliveInterval = 2 * time.Second
	keepAliveCount    = 3
)

// KeepAlive makes the kernel detect within about [LostAfter] that an idle peer is gone.
func KeepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount}
}

// SetKeepAlive applies [KeepAlive] to a bare socket. Errors mean that the socket is closed and are ignored.
func SetKeepAlive(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAliveIdle/time.Second))
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAliveInterval/time.Second))
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveCount)
}

// State returns the TCP state of c or of the connection it wraps, such as unix.BPF_TCP_ESTABLISHED. It returns
// unix.BPF_TCP_CLOSE if there is no open TCP socket.
func State(c net.Conn) uint8 {
	state := uint8(unix.BPF_TCP_CLOSE)
	if raw := rawOf(c); raw != nil {
		_ = raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				state = info.State
			}
		})
	}
	return state
}

// Unanswered returns how long the peer of a socket has not acknowledged data that was retransmitted at least twice.
// Otherwise it returns 0. A peer that acknowledges everything but no longer reads leaves no data unacknowledged, so it
// counts as alive.
func Unanswered(fd int) time.Duration {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.Unacked == 0 || info.Retransmits < 2 {
		return 0
	}
	silent := time.Duration(info.Last_ack_recv) * time.Millisecond
	// The last acknowledgement may predate an idle period. The retransmission timeout doubles, so it bounds the time
	// since the data was sent.
	return min(silent, time.Duration(info.Rto)*time.Microsecond)
}

// UnansweredBy is [Unanswered] for c or the TCP connection it wraps. It returns 0 if there is none.
func UnansweredBy(c net.Conn) (silent time.Duration) {
	if raw := rawOf(c); raw != nil {
		_ = raw.Control(func(fd uintptr) { silent = Unanswered(int(fd)) })
	}
	return silent
}

func rawOf(c net.Conn) syscall.RawConn {
	tcp, ok := TCP(c)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// Bind sets the source address of an unconnected socket and leaves the port to connect(2). The kernel then picks a port
// that is free for the destination, so the port range limits the connections to each server, not the connections from
// the address.
func Bind(fd int, from netip.Addr) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	var sa unix.Sockaddr = &unix.SockaddrInet6{Addr: from.As16()}
	if from.Is4() {
		sa = &unix.SockaddrInet4{Addr: from.As4()}
	}
	return os.NewSyscallError("bind", unix.Bind(fd, sa))
}
