package fault

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// Wherever a run of a schedule fails, its command has run once or not at all, and the next run happens.
func TestARunThatFailsIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	w.Env = []string{harness.FaultsFile + "=" + w.FaultsPath()}
	w.StartIfStopped()
	box := w.Create(map[string]any{})
	body := map[string]any{"type": "exec", "cron": "@yearly", "command": []string{"sh", "-c", "echo ran >> ran"}}
	type schedule struct {
		ID   string
		Runs int64 `json:"total_runs"`
	}
	var judged schedule
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "schedules"), body, &judged); err != nil {
		t.Fatal(err)
	}
	ran := func() int {
		out, _ := w.Sh(box, "cat ran 2>/dev/null | wc -l")
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	want, year := 0, 0
	jump := func() { year++; w.ShiftClock(time.Duration(year) * 366 * 24 * time.Hour) }
	// The gateway checks its clock every few seconds, and whenever a schedule is created.
	look := func() { _ = w.Client.Do(t.Context(), "POST", api.BoxPath(box, "schedules"), body, nil) }
	list := func() (all []schedule) {
		if err := w.Client.Get(t.Context(), api.BoxPath(box, "schedules"), &all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	ended := func() int64 {
		all := list()
		at := slices.IndexFunc(all, func(s schedule) bool { return s.ID == judged.ID })
		if at < 0 {
			t.Fatal("the schedule is gone")
		}
		return all[at].Runs
	}
	// Delete the schedules of checks before they are due.
	clean := func() {
		for _, s := range list() {
			if s.ID != judged.ID {
				_ = w.Client.Do(t.Context(), "DELETE", api.BoxPath(box, "schedules/"+s.ID), nil, nil)
			}
		}
	}
	for _, step := range stepsOfSchedule {
		for _, kind := range []string{harness.FaultDie, harness.FaultError, harness.FaultPanic} {
			what := kind + " at " + step
			runs, log := ended(), w.LogText()
			// A time that comes while a run is active is skipped, so the run has to be over before the next jump.
			over := func() bool {
				logged := func(line string) bool { return strings.Count(w.LogText(), line) > strings.Count(log, line) }
				switch {
				case w.Armed():
					return false
				case kind == harness.FaultPanic:
					return logged("panic in a run of a schedule")
				case kind == harness.FaultError && step == "schedule: run ended":
					return logged("the end of a run was not stored")
				}
				return ended() > runs
			}
			w.Arm(kind, step)
			jump()
			look()
			if kind == harness.FaultDie {
				w.AwaitExit(what)
				w.StartIfStopped()
			}
			w.Until(what, over)
			if step == "schedule: run ended" {
				want++
			}
			clean()
			if got := ran(); got != want {
				t.Errorf("%s: the command ran %d times, want %d", what, got, want)
			}
			runs = ended()
			jump()
			look()
			want++
			w.Until("the end of the next run after "+what, func() bool { return ended() > runs })
			clean()
			if got := ran(); got != want {
				t.Errorf("after %s: the command ran %d times, want %d", what, got, want)
			}
		}
	}
}
