package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"boxgate/launcher/oci"
)

// ReapOrphans reaps the processes that a runtime which has failed, or was killed, has left to this process as their reaper;
// their IDs are unknown. The first process of a box does not end before its PID namespace is reaped completely, so the box
// would neither run nor end. ReapOrphans selects children that are half started, or that belongs returns true for.
//
// Processes that are still dying are waited for in the background, and so are children that they leave in turn.
func ReapOrphans(belongs func(pid int) bool) {
	if found := orphans(belongs); len(found) > 0 {
		go func() {
			for len(found) > 0 && reapAll(found) {
				found = orphans(belongs)
			}
		}()
	}
}

// reapAll waits until all of them have ended, and reports whether it could.
func reapAll(found []orphan) bool {
	var all sync.WaitGroup
	defer all.Wait()
	for _, each := range found {
		o, err := Adopt(each.pid, nil)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return false
		}
		all.Go(func() {
			if o.waitUnreaped() == nil && (each.certain || halfStarted(read(each.pid))) {
				_, _ = o.wait()
			}
			o.handle.Close()
		})
	}
	return true
}

// waitUnreaped blocks until the process has ended, without reaping it.
func (o *Process) waitUnreaped() error {
	raw, err := o.handle.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) (done bool) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// orphan is a child of this process that may have to be reaped.
type orphan struct {
	pid     int
	certain bool // false: it may still become a command of a box, which another goroutine waits for
}

// orphans returns the children of this process that may have to be reaped.
func orphans(belongs func(pid int) bool) []orphan {
	var found []orphan
	stats, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range stats {
		id, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if pid, comm, ok := read(id); ok {
			if certain := belongs(pid); certain || halfStarted(pid, comm, ok) {
				found = append(found, orphan{pid, certain})
			}
		}
	}
	return found
}

// read returns the name of a child of this process. ok is false for other processes.
func read(id int) (pid int, comm string, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id))
	if err != nil {
		return 0, "", false
	}
	return child(string(stat), os.Getpid())
}

// halfStarted reports whether a process has the name of a process that a runtime has not turned into the command of a box
// yet. A command that takes such a name only loses its own exit status.
func halfStarted(pid int, comm string, ok bool) bool {
	return ok && oci.HalfStarted(comm, func() bool { return inBox(pid) })
}

// inBox reports whether a process, which may have ended, is in a PID namespace below ours.
func inBox(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	return len(innerIDs(string(status))) > 1
}

// child parses a process's stat (proc_pid_stat(5)), and reports whether it is a child of parent.
func child(stat string, parent int) (pid int, comm string, ok bool) {
	id, rest, _ := strings.Cut(stat, " (")
	end := strings.LastIndex(rest, ") ")
	if end < 0 {
		return 0, "", false
	}
	fields := strings.Fields(rest[end+1:])
	if len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
		return 0, "", false
	}
	pid, err := strconv.Atoi(id)
	return pid, rest[:end], err == nil
}
