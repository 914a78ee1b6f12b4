package socket

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The functions in this file make system calls on bare descriptors without entering the Go scheduler (see [Direct]).
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
