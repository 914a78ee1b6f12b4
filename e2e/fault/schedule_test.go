package fault

import (
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
	type schedule struct{ ID string }
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
	// Delete the schedules of checks before they are due.
	clean := func() {
		var all []schedule
		if err := w.Client.Get(t.Context(), api.BoxPath(box, "schedules"), &all); err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s != judged {
				_ = w.Client.Do(t.Context(), "DELETE", api.BoxPath(box, "schedules/"+s.ID), nil, nil)
			}
		}
	}
	for _, step := range stepsOfSchedule {
		for _, kind := range []string{harness.FaultDie, harness.FaultError, harness.FaultPanic} {
			what := kind + " at " + step
			w.Arm(kind, step)
			jump()
			look()
			if kind == harness.FaultDie {
				w.AwaitExit(what)
				w.StartIfStopped()
			}
			w.Until(what, func() bool { return !w.Armed() })
			if step == "schedule: run ended" {
				want++
			}
			clean()
			if got := ran(); got != want {
				t.Errorf("%s: the command ran %d times, want %d", what, got, want)
			}
			jump()
			look()
			want++
			w.Until("the next run after "+what, func() bool { return ran() >= want })
			clean()
			if got := ran(); got != want {
				t.Errorf("after %s: the command ran %d times, want %d", what, got, want)
			}
		}
	}
}
