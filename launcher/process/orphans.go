package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReapOrphans reaps the processes that runc left to us, as their reaper, when they were killed before they became commands of a
// box: runc has failed and told nobody their IDs. The first process of a box does not end before all of its PID namespace
// are reaped, so that such a box would neither run nor end.
func ReapOrphans() {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if pid, ok := orphan(string(stat), os.Getpid()); err == nil && ok {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// orphan reads a process's stat (proc_pid_stat(5)), and reports whether it is such a process that has ended. A command of a box
// that takes the name only loses its own exit status.
func orphan(stat string, parent int) (pid int, ok bool) {
	id, rest, _ := strings.Cut(stat, " (")
	name, rest := rest[:max(0, strings.LastIndex(rest, ") "))], rest[strings.LastIndex(rest, ") ")+1:]
	fields := strings.Fields(rest)
	if len(fields) < 2 || fields[0] != "Z" || fields[1] != strconv.Itoa(parent) || !strings.HasPrefix(name, "runc:[") {
		return 0, false
	}
	pid, err := strconv.Atoi(id)
	return pid, err == nil
}
