package foreign

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

// This file tells the first process of a container from one that got its process ID later: Docker names a process that has ended until
// it has noticed that.

// ErrNotFirst says that a process is not the one that a container began with.
var ErrNotFirst = errors.New("the process that Docker names is not the one that the container began with: it was restarted or ended just now, try again")

// containerIDs are the IDs of containers in the names of control groups, as Docker, Podman and systemd write them.
var containerIDs = regexp.MustCompile(`[0-9a-f]{64}`)

// startSlack is how much later than its container a process may seem to have started: the kernel counts in hundredths of a second, and
// a clock may be corrected.
const startSlack = time.Second

// IsFirst checks that a process is the first of a container, by its control group; where that says nothing, by the time at which it
// started: a process that got the ID later also started later. read reads a file of its directory in /proc; the caller sees to it that
// they are all of the same process. started is what Docker says of the container. The error is [ErrNotFirst], or that of read.
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
		if !bytes.Contains(own, []byte(other)) { // else the gateway is in that container, with everything here
			return ErrNotFirst
		}
	}
	stat, err := read("stat")
	if err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339Nano, started)
	if err != nil || at.Year() < 1970 { // never, for Docker
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

// ageOf returns how long ago a process started, from its /proc/PID/stat.
func ageOf(stat []byte) (time.Duration, error) {
	const startTime, perSecond = 22, 100 // see proc_pid_stat(5); what it calls clock ticks are hundredths for every process
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	fields := strings.Fields(string(rest)) // from the third on
	if len(fields) <= startTime-3 {
		return 0, errors.New("what the kernel says about the process cannot be read")
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
