// Package systemd implements the protocol between the gateway and the service manager that started it: notifications of
// its state and main process, and the sockets that the manager keeps open while the gateway restarts (sd_notify(3),
// sd_listen_fds(3)). Without a service manager all functions are no-ops.
package systemd

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
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

// The environment variables that describe passed descriptors, and the first such descriptor (sd_listen_fds(3)).
const (
	variablePID   = "LISTEN_PID"
	variableCount = "LISTEN_FDS"
	variableNames = "LISTEN_FDNAMES"
	firstFD       = 3
)

// prefix is the name prefix of descriptors stored by [Keep]. Other names belong to socket units.
const prefix = "boxgate-"

// longestName is the maximum length of a stored descriptor's name.
const longestName = 255

// Kept returns the sockets that the service manager has kept since an earlier run, by name. The caller must close them.
// Other passed descriptors are closed. Call it once, before starting any process: it clears the environment variables and
// sets close-on-exec, so that child processes do not inherit the sockets.
func Kept() map[string]*os.File {
	pid, count, names := os.Getenv(variablePID), os.Getenv(variableCount), strings.Split(os.Getenv(variableNames), ":")
	for _, v := range []string{variablePID, variableCount, variableNames} {
		_ = os.Unsetenv(v)
	}
	n, err := strconv.Atoi(count)
	if err != nil || pid != strconv.Itoa(os.Getpid()) { // no sockets, or they are for the parent process
		return nil
	}
	files := map[string]*os.File{}
	for i := range n {
		fd := firstFD + i
		unix.CloseOnExec(fd)
		name, ok := "", false
		if i < len(names) {
			name, ok = nameOf(names[i])
		}
		if !ok || files[name] != nil {
			_ = unix.Close(fd)
			continue
		}
		files[name] = os.NewFile(uintptr(fd), name)
	}
	return files
}

// storedName returns the name under which the service manager stores a socket. Escaping removes colons, which are not
// allowed.
func storedName(name string) string { return prefix + url.QueryEscape(name) }

// nameOf is the inverse of storedName.
func nameOf(stored string) (name string, ok bool) {
	escaped, ok := strings.CutPrefix(stored, prefix)
	if !ok {
		return "", false
	}
	name, err := url.QueryUnescape(escaped)
	return name, err == nil
}

// Keep has the service manager keep a socket open until the service is stopped, and pass it to the next run under the
// same name. The manager ignores sockets it already has, and all sockets if the unit has no FileDescriptorStoreMax.
func Keep(name string, c syscall.Conn) error {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	name = storedName(name)
	if len(name) > longestName {
		return fmt.Errorf("the name %q is too long", name)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		// Without FDPOLL=0 the manager would drop a socket with a pending error.
		err = send([]byte("FDSTORE=1\nFDPOLL=0\nFDNAME="+name), unix.UnixRights(int(fd)), patience)
	})
	return errors.Join(ctlErr, err)
}

// Drop has the service manager close the socket stored under a name.
func Drop(name string) error { return Notify("FDSTOREREMOVE=1\nFDNAME=" + storedName(name)) }
