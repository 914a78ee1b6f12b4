package firewall

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// listenConfig applies control to the socket before it is bound.
func listenConfig(control func(fd int) error) *net.ListenConfig {
	return &net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		if control == nil {
			return nil
		}
		var err error
		if ctlErr := rc.Control(func(fd uintptr) { err = control(int(fd)) }); ctlErr != nil {
			return ctlErr
		}
		return err
	}}
}

// transparent lets the socket accept connections for any address.
func transparent(fd int) error {
	if unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
}
