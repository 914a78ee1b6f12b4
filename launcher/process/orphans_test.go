package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// leave starts a process with a name, and waits until it has ended, or, if it stays, until it has the name.
func leave(t *testing.T, name string, stays bool, edit ...func(*exec.Cmd)) *exec.Cmd {
	t.Helper()
	last := "exit"
	if stays {
		last = "exec 1>&-; read forever"
	}
	cmd := exec.Command("sh", "-c", "printf '"+name+"' > /proc/self/comm; "+last)
	in, out := pipe(t), pipe(t)
	cmd.Stdin, cmd.Stdout = in[0], out[1]
	for _, e := range edit {
		e(cmd)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	in[0].Close()
	out[1].Close()
	_, _ = out[0].Read(make([]byte, 1))                                                          // until it ends, or closes its output
	for !stays && !strings.Contains(statOf(cmd.Process.Pid), ") Z ") && !gone(cmd.Process.Pid) { // another test may reap it immediately
		time.Sleep(time.Millisecond)
	}
	return cmd
}

func pipe(t *testing.T) [2]*os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return [2]*os.File{r, w}
}

func statOf(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return err.Error()
	}
	return string(stat)
}

func gone(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// Processes that a runtime has left are reaped: those of the failed start, whatever their names, and those with the name of
// a half-started process. Commands of others are not.
func TestOrphansOfTheRuntimeAreReaped(t *testing.T) {
	t.Parallel()
	ours, half, other := leave(t, "crun", false), leave(t, "runc:[2:INIT]", false), leave(t, "crun", false)
	dying := leave(t, "runc:[1:CHILD]", true)
	ReapOrphans(func(pid int) bool { return pid == ours.Process.Pid })
	awaitGone(t, ours)
	awaitGone(t, half)
	if gone(other.Process.Pid) || gone(dying.Process.Pid) {
		t.Error("a command, or a process that has not ended, is gone")
	}
	_ = unix.Kill(dying.Process.Pid, unix.SIGKILL) // now it ends, and is not searched for again
	awaitGone(t, dying)
}

// A process named crun was left by crun only if it is in a nested PID namespace; otherwise it is crun itself.
func TestHalfStartedByCrun(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	host, inner := leave(t, "crun", false), leave(t, "crun", false, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	})
	ReapOrphans(func(int) bool { return false })
	awaitGone(t, inner)
	if gone(host.Process.Pid) {
		t.Error("crun itself is reaped")
	}
}

// awaitGone waits until a process has been reaped.
func awaitGone(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !gone(cmd.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still there: %q", statOf(cmd.Process.Pid))
		}
	}
}

func TestStatOfAChild(t *testing.T) {
	t.Parallel()
	for stat, want := range map[string]string{
		"17 (runc:[2:INIT]) Z 4 17 17": "17 runc:[2:INIT]", "17 (runc:[2:INIT]) S 4 17": "17 runc:[2:INIT]", "17 (x) Z 4 (runc:[) Z 4 1": "17 x) Z 4 (runc:[",
		"17 (sh) Z 4 17": "17 sh", "17 (runc:[2:INIT]) Z 5 17": "", "17 (sh) Z": "", "": "", "17 (": "", "17 () ": "", "x (sh) Z 4": "",
	} {
		pid, comm, ok := child(stat, 4)
		if got := fmt.Sprint(pid, " ", comm); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %s %v", stat, got, ok)
		}
	}
}
