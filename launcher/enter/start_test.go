package enter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// launched starts a list of calls that enters no box.
func launched(t *testing.T, list *plan) *running {
	t.Helper()
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	file, err := list.file()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	run, err := p.launch(file, null, nil, "", [3]*os.File{null, null, null})
	if err != nil {
		t.Fatal(err)
	}
	run.plan = list
	return run
}

// childOf adds the calls of a child that waits to be killed.
func childOf(list *plan) {
	list.call("closing descriptors", unix.SYS_CLOSE_RANGE, freeFD, uintptr(^uint32(0)), 0)
	list.call("the process", unix.SYS_CLONE, unix.CLONE_PARENT|uintptr(unix.SIGCHLD), 0, 0).skip = 1
	list.call("the wait", unix.SYS_PAUSE)
}

// TestKilledEnteringProcess: if the entering process is killed after it has started its child, the caller must find the
// child, since its ID is unknown, and must not start the command again.
func TestKilledEnteringProcess(t *testing.T) {
	t.Parallel()
	list := &plan{}
	childOf(list)
	list.call("strict mode", unix.SYS_SECCOMP, 0 /* SECCOMP_SET_MODE_STRICT */, 0, 0)
	list.call("a call that kills it", unix.SYS_GETPPID)
	run := launched(t, list)
	lost := make(chan struct{})
	run.lose = func() {
		close(lost)
		pid := pausing()
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
	done := make(chan outcome, 1)
	go func() { done <- run.collect() }()
	select {
	case o := <-done:
		if o.PID != 0 || !errors.Is(o.err, errKilled) || errors.Is(o.err, ErrNotEntered) {
			t.Errorf("%+v", o)
		}
	case <-time.After(time.Minute):
		_ = unix.Kill(pausing(), unix.SIGKILL)
		t.Fatal("the reports do not end")
	}
	select {
	case <-lost:
	default:
		t.Error("the child is not looked for")
	}
	run.reports.Close()
}

// TestDumpableAfterChangeOfUser: boxes are not entered on a host whose kernel lets processes be traced that have changed
// their user.
func TestDumpableAfterChangeOfUser(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "suid_dumpable")
	for value, safe := range map[string]bool{"0\n": true, "2\n": true, "1\n": false, "": false, "3\n": false} {
		if err := os.WriteFile(file, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := checkDumpable(file); (err == nil) != safe {
			t.Errorf("%q: %v", value, err)
		}
	}
	if checkDumpable(file+"2") == nil {
		t.Error("a missing file is accepted")
	}
}

// pausing waits for a child of this process in pause, and returns its ID.
func pausing() int {
	for {
		ids, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range ids {
			call, _ := os.ReadFile(filepath.Join(dir, "syscall"))
			args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
			ours := strings.Contains(string(stat), fmt.Sprintf(" %d ", os.Getpid()))
			if ours && strings.HasPrefix(string(call), fmt.Sprint(unix.SYS_PAUSE)+" ") && strings.HasPrefix(string(args), "boxgate-enter") {
				pid, _ := strconv.Atoi(filepath.Base(dir))
				return pid
			}
		}
	}
}

// TestDynamicProgramsAreNotExecutedInBoxes: the kernel would take the loader of such a program from the box.
func TestDynamicProgramsAreNotExecutedInBoxes(t *testing.T) {
	t.Parallel()
	if err := checkStatic("/bin/sh"); err == nil {
		t.Error("a dynamic program was accepted")
	}
	file := t.TempDir() + "/static"
	code, err := program("amd64")
	if err == nil {
		err = os.WriteFile(file, code, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := checkStatic(file); err != nil {
		t.Error(err)
	}
}
