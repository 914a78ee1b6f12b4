package fault

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/e2e/harness"
)

// processes returns the processes of the world's gateway.
func processes(w *harness.World) (ids []int) {
	w.T.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		w.T.Fatal(err)
	}
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // empty if the process has ended
		if words := strings.Split(string(line), "\x00"); len(words) > 3 && words[1] == "serve" && words[3] == w.Config {
			ids = append(ids, id)
		}
	}
	return ids
}

// killAll kills the processes of the world's gateway and waits until they have released all resources.
func killAll(w *harness.World) {
	w.T.Helper()
	for _, id := range processes(w) {
		_ = unix.Kill(id, unix.SIGKILL)
	}
	w.Kill()
	w.Until("the gateway has ended", func() bool { return len(processes(w)) == 0 && !ending(w) })
}

// ending reports whether a gateway of any world is exiting: it has lost its command line but may still hold sockets and
// locks. Its name is that of the program, or of the link by which it executes itself.
func ending(w *harness.World) bool {
	w.T.Helper()
	name := filepath.Base(w.Self)
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		w.T.Fatal(err)
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		stat := string(text)
		if err != nil || !strings.Contains(stat, " ("+name[:min(len(name), 15)]+") ") && !strings.Contains(stat, " (exe) ") || strings.Contains(stat, ") Z ") {
			continue
		}
		if line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline")); err == nil && len(line) == 0 {
			return true
		}
	}
	return false
}

// upgrade runs `gateway upgrade` in the gateway's namespace.
func upgrade(w *harness.World) (said string, err error) {
	w.T.Helper()
	cmd := w.Command(w.T.Context(), "upgrade")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.Net.Gateway().Start(cmd); err != nil {
		w.T.Fatal(err)
	}
	err = cmd.Wait()
	return out.String(), err
}

// survives reports whether the gateway keeps serving after such a fault during its replacement. Otherwise the failed
// process was the serving one.
func survives(kind, step string) bool {
	switch {
	case step == "start: serving":
		return false
	case strings.HasPrefix(step, "replace: ") && step != "replace: retired":
		return kind != harness.FaultDie
	}
	return true
}

// Whichever process fails at any step of a replacement, boxes are served by a process with their policies, or closed,
// and the next start is clean.
func TestAReplacementThatFailsOpensNothing(t *testing.T) {
	t.Parallel()
	for _, step := range stepsOfReplace {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w, s := faultWorld(t)
			t.Cleanup(func() { killAll(w) })
			r := w.Raid(makeNarrow(w))
			for _, kind := range kindsOf(step) {
				what := kind + " at " + step
				w.Arm(kind, step)
				said, err := upgrade(w)
				if err == nil && step != "start: serving" {
					t.Errorf("%s: %s", what, said)
				}
				if step == "start: serving" { // after the answer
					w.Until(what, func() bool { return !w.Armed() })
				}
				w.MustReachStep(what)
				if survives(kind, step) {
					w.Until(what+": the gateway serves", func() bool { return w.Client.Get(t.Context(), "/v2/box", nil) == nil })
					agrees(r, what)
					if wide, _ := policyNow(w, r.Box); wide {
						t.Errorf("%s: the policy is another", what)
					}
				}
				killAll(w)
				w.StartIfStopped()
				agrees(r, what+", then started")
			}
			s.assertHolds()
		})
	}
}

// A serving process that systemd may not know about exits, so that the process started by systemd can serve.
func TestASuccessorThatSystemdDoesNotKnowEnds(t *testing.T) {
	t.Parallel()
	w, _ := faultWorld(t, "SYSTEMD_EXEC_PID=1")
	t.Cleanup(func() { killAll(w) })
	r := w.Raid(makeNarrow(w))
	w.Arm(harness.FaultDie, "replace: retired")
	if said, err := upgrade(w); err == nil {
		t.Error(said)
	}
	w.Until("no process serves", func() bool { return len(processes(w)) == 0 && !ending(w) })
	w.Kill() // records that it has ended
	w.StartIfStopped()
	agrees(r, "started anew")
}
