package sandboxns

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// This file distinguishes the first process of a container from a process that reused its ID: until Docker has noticed
// the end of a process, it still reports its ID.

// ErrNotFirst means that a process is not the first process of a container.
var ErrNotFirst = errors.New("the process that Docker names is not the one that the container began with: it was restarted or ended just now, try again")

// containerIDs matches the container IDs in cgroup names made by Docker, Podman and systemd.
var containerIDs = regexp.MustCompile(`[0-9a-f]{64}`)

// startSlack is how much later than its container a process may seem to have started: the kernel's start times have a
// resolution of 1/100 s, and the clock may be corrected.
const startSlack = time.Second

// IsFirst checks that a process is the first of a container, by its cgroup. If the cgroup is inconclusive, it compares
// start times: a process that reused the ID also started later. read reads a file of the process's directory in /proc;
// the caller ensures that all reads are of the same process. id and started are the container's ID and start time
// reported by Docker. The error is [ErrNotFirst] or that of read.
func IsFirst(read func(file string) ([]byte, error), id, started string) error {
	groups, err := read("cgroup")
	if err != nil {
		return err
	}
	ids := containerIDs.FindAllString(string(groups), -1)
	if slices.Contains(ids, id) {
		return nil
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	for _, other := range ids {
		if !bytes.Contains(own, []byte(other)) { // otherwise the gateway itself runs in that container, and so does everything here
			return ErrNotFirst
		}
	}
	stat, err := read("stat")
	if err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339Nano, started)
	if err != nil || at.Year() < 1970 { // Docker's zero time: never started
		return ErrNotFirst
	}
	age, err := ageOf(stat)
	if err != nil {
		return err
	}
	if time.Now().Add(-age).After(at.Add(startSlack)) {
		return ErrNotFirst
	}
	return nil
}

// ageOf returns the age of a process, from its /proc/PID/stat.
func ageOf(stat []byte) (time.Duration, error) {
	const startTime, perSecond = 22, 100 // see proc_pid_stat(5); the clock ticks of /proc are always 1/100 s
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	fields := strings.Fields(string(rest)) // from the third field on
	if len(fields) <= startTime-3 {
		return 0, errors.New("/proc/PID/stat of the process could not be parsed")
	}
	ticks, err := strconv.ParseInt(fields[startTime-3], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("when the process started: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, err
	}
	return time.Duration(now.Nano()) - time.Duration(ticks)*(time.Second/perSecond), nil
}
