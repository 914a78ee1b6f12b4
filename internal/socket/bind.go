package socket

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

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
