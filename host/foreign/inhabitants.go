package foreign

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openProcess returns a handle of a process, which keeps meaning that process when its ID is another's.
func openProcess(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// hasEnded reports whether a process has ended.
func hasEnded(process *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(process.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// AwaitEnd returns when a process has ended, or its handle is closed. It costs a goroutine, and no thread.
func AwaitEnd(process *os.File) {
	raw, err := process.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// inhabitant returns a handle of a process in the network namespace at a path, or nil if there is none. It looks at one
// process first, if hint is not 0.
func inhabitant(path string, hint int) *os.File {
	var ns unix.Stat_t
	if err := unix.Stat(path, &ns); err != nil {
		return nil
	}
	if p := processIn(ns, hint); p != nil {
		return p
	}
	for range passes {
		if p := anyIn(ns); p != nil {
			return p
		}
	}
	return nil
}

// passes is how often all processes are looked at before there is none: one look may pass over a process whose parent ends
// meanwhile.
const passes = 3

// anyIn looks at all processes.
func anyIn(ns unix.Stat_t) *os.File {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what was read counts, whatever has ended since
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p := processIn(ns, pid); p != nil {
				return p
			}
		}
	}
	return nil
}

// processIn returns a handle of a process if it is in the network namespace.
func processIn(ns unix.Stat_t, pid int) *os.File {
	if pid <= 0 || !isAt(ns, netNSOf(pid)) {
		return nil
	}
	process, err := openProcess(pid)
	if err != nil {
		return nil
	}
	if isAt(ns, netNSOf(pid)) && !hasEnded(process) { // and not another process since
		return process
	}
	process.Close()
	return nil
}

// isAt reports whether the namespace is the one at a path.
func isAt(ns unix.Stat_t, path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Dev == ns.Dev && st.Ino == ns.Ino
}

// Same reports whether the same namespace is at both paths.
func Same(a, b string) bool {
	var st unix.Stat_t
	return unix.Stat(a, &st) == nil && isAt(st, b)
}
