package sockettest

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
)

// Vanish makes the kernel drop all packets received for a TCP connection, as if its host were gone: the peer gets no
// answer. back undoes it. Requires root, because the kernel may refuse filters to other users.
func Vanish(t testing.TB, c net.Conn) (back func()) {
	t.Helper()
	control := func(what func(fd int) error) {
		tcp, ok := socket.TCP(c)
		if !ok {
			t.Fatal("not a TCP connection")
		}
		raw, err := tcp.SyscallConn()
		if err == nil {
			fault := raw.Control(func(fd uintptr) { err = what(int(fd)) })
			if fault != nil {
				err = fault
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} // keep 0 bytes of each packet
	control(func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
	})
	return func() {
		control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) })
	}
}
