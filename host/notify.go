package host

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// notifySystemd sends a state to the service manager that started the gateway, if one did (sd_notify(3)).
func notifySystemd(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(state))
	return err
}

// NotifyReloading tells the service manager that the configuration is read again.
func NotifyReloading() {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	_ = notifySystemd(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}

// NotifyReady tells the service manager that the gateway serves, after [NotifyReloading] too.
func NotifyReady() { _ = notifySystemd("READY=1") }
