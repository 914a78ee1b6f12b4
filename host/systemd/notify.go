package systemd

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Notify sends a state, or several in lines.
func Notify(state string) error { return send([]byte(state), nil) }

// send sends a state, with the rights to descriptors.
func send(state, rights []byte) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendmsg(fd, state, rights, &unix.SockaddrUnix{Name: path}, 0)
}

// Reloading says that the configuration is read again.
func Reloading() {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	_ = Notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}

// Ready says that the gateway serves, after [Reloading] too.
func Ready() error { return Notify("READY=1") }
