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
