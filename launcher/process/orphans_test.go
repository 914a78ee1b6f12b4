package process

import (
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOrphansOfTheRuntimeAreReaped(t *testing.T) {
	t.Parallel()
	for name, reaped := range map[string]bool{"runc:[2:INIT]": true, "a command": false} {
		cmd := exec.Command("sh", "-c", "printf '"+name+"' > /proc/$$/comm; kill -9 $$")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := cmd.Process.Pid
		var info unix.Siginfo // the process has ended, and stays a zombie
		for {
			if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		ReapOrphans()
		if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) != reaped {
			t.Errorf("%s: %v", name, err)
		}
		_ = cmd.Wait()
	}
}

func TestStatOfAnOrphan(t *testing.T) {
	t.Parallel()
	for stat, want := range map[string]int{
		"17 (runc:[2:INIT]) Z 4 17 17": 17, "17 (runc:[2:INIT]) S 4 17": 0, "17 (runc:[2:INIT]) Z 5 17": 0, "17 (x) Z 4 (runc:[) Z 4 1": 0,
		"17 (sh) Z 4 17": 0, "17 (runc:[2:INIT]) Z": 0, "": 0, "17 (": 0, "17 () ": 0,
	} {
		if got, ok := orphan(stat, 4); got != want || ok != (want != 0) {
			t.Errorf("%q: %d %v", stat, got, ok)
		}
	}
}
