package harness

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sharePeriod is the period of the CPU quota. It is short so that members that have used up their quota do not hold
// kernel locks for long.
const sharePeriod = 10 * time.Millisecond

// CPUShare is a control group that limits the total CPU time of its members.
type CPUShare struct {
	t   *testing.T
	dir string
}

// NewCPUShare creates a control group whose members together get at most this part of the machine's processors. At the
// end of the test the group and its remaining members are removed.
func NewCPUShare(t *testing.T, part float64) *CPUShare {
	t.Helper()
	mount, unified := cpuHierarchy(t)
	s := &CPUShare{t: t, dir: filepath.Join(mount, "boxgate-test-"+strconv.Itoa(os.Getpid()))}
	if unified { // children of the root have the controller only on request
		s.write(filepath.Join(mount, "cgroup.subtree_control"), "+cpu")
	}
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.remove)
	period := strconv.FormatInt(sharePeriod.Microseconds(), 10)
	most := strconv.Itoa(int(part * float64(runtime.NumCPU()) * float64(sharePeriod.Microseconds())))
	if unified {
		s.write(filepath.Join(s.dir, "cpu.max"), most+" "+period)
		return s
	}
	s.write(filepath.Join(s.dir, "cpu.cfs_period_us"), period)
	s.write(filepath.Join(s.dir, "cpu.cfs_quota_us"), most)
	return s
}

// Join moves a process into the group, and thereby its later children.
func (s *CPUShare) Join(pid int) {
	s.t.Helper()
	s.write(filepath.Join(s.dir, "cgroup.procs"), strconv.Itoa(pid))
}

// Periods returns how many periods the group was active, and how many times its members used up the quota.
// quota.
func (s *CPUShare) Periods() (all, usedUp int) {
	s.t.Helper()
	stat, err := os.ReadFile(filepath.Join(s.dir, "cpu.stat"))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(stat)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, _ := strconv.Atoi(value)
		switch name {
		case "nr_periods":
			all = n
		case "nr_throttled":
			usedUp = n
		}
	}
	return all, usedUp
}

func (s *CPUShare) write(path, text string) {
	s.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0); err != nil {
		s.t.Fatal(err)
	}
}

// remove kills the members and removes the group.
func (s *CPUShare) remove() {
	var err error
	for began := time.Now(); time.Since(began) < Patience; time.Sleep(time.Millisecond) {
		pids, _ := os.ReadFile(filepath.Join(s.dir, "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(pids)) {
			if n, err := strconv.Atoi(pid); err == nil {
				_ = unix.Kill(n, unix.SIGKILL)
			}
		}
		if err = unix.Rmdir(s.dir); err == nil {
			return
		}
	}
	s.t.Errorf("removing a control group: %v", err)
}

// cpuHierarchy returns the mount point of the control groups with the CPU controller, and whether it is version 2.
func cpuHierarchy(t *testing.T) (mount string, unified bool) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 3 {
			continue
		}
		switch {
		case kind[0] == "cgroup" && slices.Contains(strings.Split(kind[2], ","), "cpu"):
			return fields[4], false
		case kind[0] == "cgroup2" && fields[4] == "/sys/fs/cgroup":
			return fields[4], true
		}
	}
	t.Fatal("this host has no control groups for processor time")
	return "", false
}

// unifiedMount is the mount point of control groups version 2 on a hybrid host.
const unifiedMount = "/sys/fs/cgroup/unified"

// WithoutUnified returns a runtime that sees only control groups version 1, for a runtime that refuses a host with controllers of both.
func WithoutUnified(t *testing.T, path string) string {
	t.Helper()
	if controllers, err := os.ReadFile(unifiedMount + "/cgroup.controllers"); err != nil || len(bytes.TrimSpace(controllers)) == 0 {
		return path
	}
	wrapper := filepath.Join(t.TempDir(), filepath.Base(path))
	text := "#!/bin/sh\nexec unshare --mount --propagation unchanged sh -c 'mount --make-rprivate /sys/fs/cgroup && umount " + unifiedMount +
		" && exec " + path + " \"$@\"' sh \"$@\"\n"
	if err := os.WriteFile(wrapper, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return wrapper
}
