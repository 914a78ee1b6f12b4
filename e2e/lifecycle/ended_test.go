package lifecycle

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// TestEndOfABoxIsNoticedAtOnce kills the first process of an unused box: a new one, a restarted one, and one found by a
// new gateway. API, metrics and log report it, and resume starts the box again.
func TestEndOfABoxIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	for n := range 3 {
		if n == 2 {
			w.Kill()
			if err := w.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		ends := w.Metric("boxgate_boxes_ended_total")
		killInit(w, box)
		w.UntilStatus(box, "error")
		if _, problem := w.BoxStatus(box); !strings.Contains(problem, "its first process has ended") {
			t.Errorf("%d: the API says %q", n, problem)
		}
		w.Until("it is counted", func() bool { return w.Metric("boxgate_boxes_ended_total") == ends+1 })
		if !strings.Contains(string(w.Metrics()), `boxgate_boxes{state="error"} 1`) {
			t.Errorf("%d: the metrics have no box in state error", n)
		}
		mustPost(w, box, "resume")
		w.MustSh(box, "curl -k -sS -o /dev/null https://api.example.com/")
		if _, code := w.Sh(box, "curl -sS https://evil.example.net/"); code != 35 {
			t.Errorf("%d: curl exited with %d", n, code)
		}
	}
	if !strings.Contains(w.ReadLog(), "a box has ended") {
		t.Error("the log has no word of it")
	}
	w.NothingReached("evil.example.net")
}

// TestEndsDuringEverythingElse kills the first process of a box while it is paused, resumed, restarted and used. In any
// case resume starts it, and it can be deleted.
func TestEndsDuringEverythingElse(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	var all sync.WaitGroup
	for _, call := range []string{"pause", "resume", "resume", "kill", "exec"} {
		all.Go(func() {
			for range 6 {
				switch call {
				case "kill":
					killIfThere(w, box)
				case "exec":
					_, _ = tryToUse(w, box)
				default:
					_ = post(w, box, call)
				}
				if got := status(w, box); got != "idle" && got != "running" && got != "paused" && got != "error" {
					t.Errorf("it is %s", got)
				}
			}
		})
	}
	over := make(chan struct{})
	go func() { all.Wait(); close(over) }()
	w.Until("all calls have returned", func() bool { // a command may be frozen in a box that was paused last
		_ = post(w, box, "resume")
		select {
		case <-over:
			return true
		default:
			return false
		}
	})
	w.Until("it can be used", func() bool { // the last end may not be processed yet
		_ = post(w, box, "resume")
		out, err := tryToUse(w, box)
		return err == nil && out == "up\n"
	})
	if _, code := w.Sh(box, "curl -sS https://evil.example.net/"); code != 35 {
		t.Errorf("curl exited with %d", code)
	}
	killIfThere(w, box)
	w.MustDelete(box)
	if err := post(w, box, "resume"); err == nil {
		t.Error("a deleted box was started again")
	}
}

// tryToUse runs a command in a box that may end at any moment.
func tryToUse(w *harness.World, box string) (string, error) {
	var out bytes.Buffer
	_, err := w.Client.Exec(w.T.Context(), box, api.ExecRequest{Command: []string{"echo", "up"}}, &out, &out)
	return out.String(), err
}

// killIfThere kills the first process of a box if it has one.
func killIfThere(w *harness.World, box string) {
	data, err := os.ReadFile(filepath.Join(w.Dir, "state", "boxes", box, "pid"))
	if err != nil {
		return
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && isInitOf(pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// isInitOf reports whether a process is the first of a box, and not a later process with its ID.
func isInitOf(pid int) bool {
	cmd, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && strings.HasPrefix(string(cmd), "/.boxgate-init")
}
