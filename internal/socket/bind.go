package socket

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Bind has a socket that is not connected yet leave from an address of the host, with a port that the kernel chooses when it
// connects: so the ports of the address do not run out before those of one server do.
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
