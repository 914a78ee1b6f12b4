package systemd

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a service manager may take to read what it is told, once its queue is full.
const patience = 3 * time.Second

// Notify sends a state, or several in lines. It does not wait longer for a service manager that reads nothing than a few seconds.
func Notify(state string) error { return send([]byte(state), nil, patience) }

// send sends a state, with the rights to descriptors, or fails when nothing has read it in time.
func send(state, rights []byte, patience time.Duration) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return err
	}
	for until := time.Now().Add(patience); ; {
		err = unix.Sendmsg(fd, state, rights, &unix.SockaddrUnix{Name: path}, 0)
		if !errors.Is(err, unix.EINTR) || time.Now().After(until) {
			break
		}
	}
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("nobody reads %s", path)
	}
	return err
}

// Supervised reports whether systemd has started the service, and so starts another process when the one that it knows as the main
// one ends.
func Supervised() bool {
	return os.Getenv("NOTIFY_SOCKET") != "" && os.Getenv("SYSTEMD_EXEC_PID") != ""
}

// Reloading says that the configuration is read again.
func Reloading() {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	_ = Notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}

// Ready says that the gateway serves, after [Reloading] too.
func Ready() error { return Notify("READY=1") }
