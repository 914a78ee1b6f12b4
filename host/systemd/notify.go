package systemd

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a send waits for a service manager whose queue is full.
const patience = 3 * time.Second

// Notify sends one or more lines of state to the service manager. If the manager does not read, it fails after patience.
func Notify(state string) error { return send([]byte(state), nil, patience) }

// send sends a state with descriptor rights. It fails if the queue stays full for patience.
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
		return fmt.Errorf("%s is not being read", path)
	}
	return err
}

// Supervised reports whether systemd started the service, and so would start another process when the main one ends.
func Supervised() bool {
	return os.Getenv("NOTIFY_SOCKET") != "" && os.Getenv("SYSTEMD_EXEC_PID") != ""
}

// Reloading notifies the service manager that the configuration is being reloaded.
func Reloading() {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	_ = Notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}

// Ready notifies the service manager that the gateway serves, also after [Reloading].
func Ready() error { return Notify("READY=1") }
