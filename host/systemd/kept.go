package systemd

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The variables in which a service manager says what it passes on, and the first descriptor of that (sd_listen_fds(3)).
const (
	variablePID   = "LISTEN_PID"
	variableCount = "LISTEN_FDS"
	variableNames = "LISTEN_FDNAMES"
	firstFD       = 3
)

// prefix begins the names of what [Keep] has stored: other names are those of socket units.
const prefix = "boxgate-"

// longestName is how long the name of a stored descriptor may be.
const longestName = 255

// Kept returns the sockets that the service manager has kept since an earlier run, by their names, which are the caller's to close.
// What it passes on besides is closed. Call it once, before any other process is started: from then on no other process is told of
// the sockets, or inherits one.
func Kept() map[string]*os.File {
	pid, count, names := os.Getenv(variablePID), os.Getenv(variableCount), strings.Split(os.Getenv(variableNames), ":")
	for _, v := range []string{variablePID, variableCount, variableNames} {
		_ = os.Unsetenv(v)
	}
	n, err := strconv.Atoi(count)
	if err != nil || pid != strconv.Itoa(os.Getpid()) { // nothing, or for the process that has started this one
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

// stored is the name under which the service manager has a socket: it takes no colon.
func stored(name string) string { return prefix + url.QueryEscape(name) }

// nameOf is the opposite of stored.
func nameOf(stored string) (name string, ok bool) {
	escaped, ok := strings.CutPrefix(stored, prefix)
	if !ok {
		return "", false
	}
	name, err := url.QueryUnescape(escaped)
	return name, err == nil
}

// Keep has the service manager keep a socket open until the service is stopped, and pass it on to the next run under that name. It
// ignores what it has already, and everything if the unit has no FileDescriptorStoreMax.
func Keep(name string, c syscall.Conn) error {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	name = stored(name)
	if len(name) > longestName {
		return fmt.Errorf("the name %q is too long", name)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		// Without FDPOLL the manager would let go of a socket that has an error to report.
		err = send([]byte("FDSTORE=1\nFDPOLL=0\nFDNAME="+name), unix.UnixRights(int(fd)), patience)
	})
	return errors.Join(ctlErr, err)
}

// Drop has the service manager close the socket of that name.
func Drop(name string) error { return Notify("FDSTOREREMOVE=1\nFDNAME=" + stored(name)) }
