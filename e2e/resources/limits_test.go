package resources

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// newSmallWorld returns a world whose boxes may write little.
func newSmallWorld(t *testing.T, change func(*config.Config)) *harness.World {
	t.Helper()
	return harness.NewWorld(t, func(c *config.Config) {
		c.Launcher.Disk = config.Disk{Mode: "loop", Small: 128 << 20, Medium: 256 << 20, Large: 256 << 20, Files: 5000}
		if change != nil {
			change(c)
		}
	})
}

// A box that fills its disk gets ENOSPC, for bytes and for files. Neither the gateway nor another box is affected.
// Deleting the box frees all of its disk space.
func TestAttackByFillingTheDisk(t *testing.T) {
	t.Parallel()
	w := newSmallWorld(t, nil)
	box, other := w.Create(map[string]any{}), w.Create(map[string]any{"size": "medium"})
	out, code := w.Sh(box, "head -c 1G /dev/zero >big; rc=$?; stat -c %s big; exit $rc")
	if code == 0 || !strings.Contains(out, "No space left on device") {
		t.Errorf("exit %d: %s", code, out)
	}
	w.MustSh(other, "head -c 150M /dev/zero >big && sync big && rm big")
	w.MustSh(box, "rm big && head -c 1M /dev/zero >small")
	out, code = w.Sh(box, `mkdir many; i=0; while : >many/$i; do i=$((i+1)); [ $i -gt 20000 ] && exit 0; done; echo "$i files"; exit 1`)
	if code == 0 {
		t.Errorf("20,000 files were made: %s", out)
	}
	w.SetPolicy(box, harness.Custom("api.example.com")) // the store has space
	w.Kill()
	w.StartIfStopped()
	if out, code := w.Sh(box, "rm -r many && cat small | wc -c"); code != 0 || !strings.Contains(out, "1048576") {
		t.Errorf("after a restart of the gateway: exit %d: %s", code, out)
	}
	w.MustDelete(box)
	w.MustDelete(other)
	w.Until("no mount and no loop device is left", func() bool {
		devices, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
		for _, d := range devices {
			if file, _ := os.ReadFile(d); strings.Contains(string(file), w.Dir) {
				return false
			}
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		return err == nil && !strings.Contains(string(mounts), filepath.Join(w.Dir, "state", "boxes"))
	})
}

// A box cannot raise its own limit.
func TestAttackOnTheDiskLimit(t *testing.T) {
	t.Parallel()
	w := newSmallWorld(t, nil)
	box := w.Create(map[string]any{})
	out, _ := w.Sh(box, "ls /dev/loop* /dev/block 2>&1; mount -o remount,prjquota / 2>&1; mknod b b 7 0 2>&1; chattr -p 5 . 2>&1; grep -c loop /proc/mounts")
	if strings.Contains(out, w.Dir) {
		t.Errorf("the box sees where its disk is: %s", out)
	}
	if _, code := w.Sh(box, "head -c 300M /dev/zero >big"); code == 0 {
		t.Error("the limit is gone")
	}
}

// A fork bomb stops at the limit of processes, and the box keeps running.
func TestAttackByForkBomb(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box, other := w.Create(map[string]any{}), w.Create(map[string]any{})
	out := w.MustSh(box, `python3 -c '
import os, time
children = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        children.append(pid)
except OSError as e:
    print("stopped", e.errno, len(children) < 2100)
for pid in children:
    os.kill(pid, 9)
for pid in children:
    os.waitpid(pid, 0)
'`)
	harness.Contains(t, out, "stopped 11 True") // EAGAIN
	w.MustSh(other, "true")
	w.MustSh(box, "true")
}

// leastScore returns the lowest score for the OOM killer that a process of a box can choose: its own, or without CAP_SYS_RESOURCE on the
// host that of the gateway (proc_pid_oom_score_adj(5)).
func leastScore(t *testing.T) int {
	t.Helper()
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		t.Fatal(err)
	}
	if caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		return 500
	}
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	own, bad := strconv.Atoi(strings.TrimSpace(string(text)))
	if err := errors.Join(err, bad); err != nil {
		t.Fatal(err)
	}
	return own
}

// TestAttackOnTheOrderOfKills: processes of a box are killed before those of the host when memory runs out. Neither the user nor the root of
// the box lowers the score of a command, of its children or of the first process, if the gateway has CAP_SYS_RESOURCE, or below that of
// the gateway if it does not.
func TestAttackOnTheOrderOfKills(t *testing.T) {
	t.Parallel()
	w, least := harness.Shared(t), leastScore(t)
	box := w.Create(map[string]any{})
	for _, user := range []string{"boxuser", "root"} {
		var out bytes.Buffer
		code, err := w.Client.Exec(t.Context(), box, api.ExecRequest{User: user, Command: []string{"python3", "-c", `
import os, sys
def attack(pid, who):
    path = "/proc/%s/oom_score_adj" % pid
    before = int(open(path).read())
    for score in (before - 1, 499, 0, -1, -1000):
        try:
            with open(path, "w") as f: f.write(str(score))
        except PermissionError: continue
    print(who, before, int(open(path).read()), flush=True)
child = os.fork()
attack("self", "parent" if child else "child")
if child:
    os.waitpid(child, 0)
    attack(1, "first")
`}}, &out, &out)
		if err != nil || code != 0 || strings.Count(out.String(), "\n") != 3 {
			t.Fatalf("%s: exit %d, %v:\n%s", user, code, err, out.String())
		}
		for line := range strings.Lines(out.String()) {
			var who string
			var before, after int
			if _, err := fmt.Sscan(line, &who, &before, &after); err != nil || before != 500 || after < least {
				t.Errorf("%s: the score of %s was %d, and is %d; the least is %d", user, who, before, after, least)
			}
		}
	}
}

// A command that needs more memory than its box has is killed, and its run reports that. The box and other boxes keep
// running. Files in /dev/shm and /tmp count as memory.
func TestAttackByTakingAllMemory(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	box := w.Create(map[string]any{})
	const little, enough = 256 << 20, 2 << 30
	for what, line := range map[string]string{
		"heap": "exec python3 -c 'x = bytearray(1 << 30)'",
		"tmp":  "head -c 1G /dev/zero >/tmp/big",
	} {
		limitMemory(t, box, little)
		before := usedBy(w, box).Usage.OOMKills
		if out, code := w.Sh(box, line); what == "heap" && code != 137 {
			t.Errorf("%s: exit %d: %s", what, code, out)
		}
		u := atLeast(w, box, what+": the kill is counted", int64(before)+1, func(u used) int64 { return int64(u.Usage.OOMKills) })
		if u.Usage.MemoryPeakBytes > 300<<20 {
			t.Errorf("%s: %d bytes at most", what, u.Usage.MemoryPeakBytes)
		}
		limitMemory(t, box, enough) // a full /tmp leaves no memory for a command
		w.MustSh(box, "rm -f /tmp/big")
	}
	var list struct {
		Runs []struct {
			Message string `json:"error_message"`
		}
	}
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "runs"), &list); err != nil {
		t.Fatal(err)
	}
	said := false
	for _, r := range list.Runs {
		said = said || strings.Contains(r.Message, "out of memory")
	}
	if !said {
		t.Errorf("no run says that it was killed for memory: %+v", list)
	}
	w.MustSh(box, "true")
	w.Until("the log says so", func() bool { return strings.Contains(w.LogText(), "a box ran out of memory") })
	w.Until("nothing runs in it", func() bool { return killAll(t, box) == 0 })
	w.Until("its state says that memory ran out", func() bool {
		err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "pause"), nil, nil)
		return err != nil && strings.Contains(err.Error(), "ran out of memory")
	})
	w.Until("the metric counts it", func() bool { return w.Metric("boxgate_boxes_oom_kills_total") >= 2 })
}

// When the kernel kills the first process of a box for lack of memory, the box stops with a state and a message that
// give the reason, and running commands report it. It is restarted from its files.
func TestFirstProcessKilledForMemory(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{})
	w.MustSh(box, "echo kept > note")
	limitMemory(t, box, 256<<20)
	for _, pid := range members(t, box) { // of its first process only
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0); err != nil {
			t.Fatal(err)
		}
	}
	// Several processes, each with a lower score than the first one.
	line := "for i in 1 2 3 4 5; do python3 -c 'import time; x = bytearray(80 << 20); time.sleep(1000)' & done; wait"
	_, _ = w.Client.Exec(t.Context(), box, api.ExecRequest{Command: []string{"sh", "-c", line}}, io.Discard, io.Discard)
	w.UntilStatus(box, "error")
	if _, problem := w.BoxStatus(box); !strings.Contains(problem, "ran out of memory") {
		t.Errorf("its state says %q", problem)
	}
	if _, err := w.Client.Exec(t.Context(), box, api.ExecRequest{Command: []string{"true"}}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "ran out of memory") || !strings.Contains(err.Error(), "resume") {
		t.Errorf("a command is told %v", err)
	}
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "resume"), nil, nil); err != nil {
		t.Fatal(err)
	}
	if out := w.MustSh(box, "cat note"); out != "kept\n" {
		t.Errorf("started again: %q", out)
	}
}

// memoryGroup returns the control group that limits a box's memory.
func memoryGroup(t *testing.T, box string) string {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/memory/boxgate-*-" + box, "/sys/fs/cgroup/boxgate-*-" + box} {
		if dirs, _ := filepath.Glob(pattern); len(dirs) == 1 {
			return dirs[0]
		}
	}
	t.Fatal("the box has no control group for memory")
	return ""
}

// killAll kills all processes of a box, as the kernel may when memory runs out, and returns their number.
func killAll(t *testing.T, box string) (n int) {
	t.Helper()
	pids := members(t, box)
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return len(pids)
}

// members returns the processes of a box.
func members(t *testing.T, box string) (pids []int) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(memoryGroup(t, box), "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	for field := range strings.FieldsSeq(string(data)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// limitMemory gives a box less memory than its size, because the test machine may not have that much.
func limitMemory(t *testing.T, box string, bytes int64) {
	t.Helper()
	var err error
	// Memory must not exceed memory plus swap, so the order depends on the direction.
	for _, file := range []string{"memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max"} {
		path := filepath.Join(memoryGroup(t, box), file)
		if _, missing := os.Stat(path); missing == nil {
			err = os.WriteFile(path, []byte(strconv.FormatInt(bytes, 10)), 0)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A box's disk writes are slowed down to the limit.
func TestWritesAreSlowedDown(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Launcher.IO.WriteBytes = 1 << 20 })
	box := w.Create(map[string]any{})
	began := time.Now()
	w.MustSh(box, "dd if=/dev/zero of=f bs=64k count=64 oflag=direct status=none")
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("4 MiB at 1 MiB a second took %v", took)
	}
}

// TestLimitsHoldForRootOfABox: the limits of a box hold for code that has become its root, with launcher.root.
func TestLimitsHoldForRootOfABox(t *testing.T) {
	t.Parallel()
	rows := []string{"TestAttackOnTheDiskLimit"}
	if nightly.Enabled() {
		rows = append(rows, "TestAttackByFillingTheDisk", "TestAttackByForkBomb", "TestAttackByTakingAllMemory")
	}
	harness.Repeat(t, harness.RootedRun(t.Context(), rows...), rows...)
}
