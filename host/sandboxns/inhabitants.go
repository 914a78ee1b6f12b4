package sandboxns

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openProcess returns a pidfd, which keeps referring to the process even if its ID is reused.
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

// AwaitEnd returns when a process has ended, or its pidfd is closed. It blocks a goroutine, but no thread.
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

// inhabitant returns a pidfd of a process in the network namespace at a path, or nil if the namespace is empty. It tries the
// process hint first, if that is not 0.
func inhabitant(path string, hint int) *os.File {
	var ns unix.Stat_t
	if err := unix.Stat(path, &ns); err != nil {
		return nil
	}
	if p := processIn(ns, hint); p != nil {
		return p
	}
	for range scans {
		if p := scanProcesses(ns); p != nil {
			return p
		}
	}
	return nil
}

// scans is how often the process list is scanned before a namespace counts as empty: a single scan may miss a process
// whose parent ends during the scan.
const scans = 3

// scanProcesses scans all processes.
func scanProcesses(ns unix.Stat_t) *os.File {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // a partial listing is fine
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p := processIn(ns, pid); p != nil {
				return p
			}
		}
	}
	return nil
}

// processIn returns a pidfd of a process if it is in the network namespace, nil otherwise.
func processIn(ns unix.Stat_t, pid int) *os.File {
	if pid <= 0 || !isAt(ns, netNSOf(pid)) {
		return nil
	}
	process, err := openProcess(pid)
	if err != nil {
		return nil
	}
	if isAt(ns, netNSOf(pid)) && !hasEnded(process) { // check again: the ID may have been reused
		return process
	}
	process.Close()
	return nil
}

// isAt reports whether the namespace at path is ns.
func isAt(ns unix.Stat_t, path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Dev == ns.Dev && st.Ino == ns.Ino
}

// Same reports whether both paths refer to the same namespace.
func Same(a, b string) bool {
	var st unix.Stat_t
	return unix.Stat(a, &st) == nil && isAt(st, b)
}
