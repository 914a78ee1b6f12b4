package lifecycle

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// scheduled is the part of a schedule in the API that these tests use.
type scheduled struct {
	ID            string `json:"id"`
	Status        string `json:"status"`
	LastRunStatus string `json:"last_run_status"`
	LastRunID     string `json:"last_run_id"`
	LastError     string `json:"last_error"`
	TotalRuns     int    `json:"total_runs"`
	TotalFailures int    `json:"total_failures"`
}

// schedule creates a schedule.
func schedule(w *harness.World, box string, body map[string]any) scheduled {
	w.T.Helper()
	var s scheduled
	if err := w.Client.Do(w.T.Context(), "POST", api.BoxPath(box, "schedules"), body, &s); err != nil {
		w.T.Fatal(err)
	}
	return s
}

func scheduleOf(w *harness.World, box, id string) (s scheduled) {
	w.T.Helper()
	if err := w.Client.Do(w.T.Context(), "GET", api.BoxPath(box, "schedules/"+id), nil, &s); err != nil {
		w.T.Fatal(err)
	}
	return s
}

// clockWorld returns a world whose gateway's clock can be set.
func clockWorld(t *testing.T) *harness.World {
	t.Helper()
	w := harness.NewStopped(t, lab.Options{})
	w.Env = []string{harness.FaultsFile + "=" + w.FaultsPath()}
	w.StartIfStopped()
	return w
}

// A schedule runs its command when it is due, with the environment and in the folder of the box, and calls its webhook
// as the box: with the header rules of the box, and under its policy. A run missed while the gateway was down is made
// up for once, a paused box is woken, and the runs are listed.
func TestSchedule(t *testing.T) {
	t.Parallel()
	w := clockWorld(t)
	box := w.Create(map[string]any{
		"env_vars": map[string]string{"WHO": "box"}, "network_policy": harness.Custom("api.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Secret": harness.TestSecret}},
		"agent":          "custom", "custom_runner": map[string]any{"command": "sh", "args": []string{"-c", `printf 'event: done\ndata: {"output":"hi"}\n\n'`, "sh"}},
	})
	w.MustSh(box, "mkdir -p src")
	s := schedule(w, box, map[string]any{
		"type": "exec", "cron": "0 * * * *", "command": []string{"sh", "-c", `echo "$WHO $PWD"; echo run >> ~/ran`}, "folder": "src",
		"webhook_url": "https://api.example.com/hook", "webhook_headers": map[string]string{"X-Own": "own"},
	})
	refused := schedule(w, box, map[string]any{
		"type": "exec", "cron": "0 * * * *", "command": []string{"false"}, "webhook_url": "https://evil.example.net/hook",
	})
	prompt := schedule(w, box, map[string]any{"type": "prompt", "cron": "0 * * * *", "prompt": "say hi"})
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "pause"), nil, nil); err != nil {
		t.Fatal(err)
	}
	w.ShiftClock(time.Hour)
	w.Until("the webhook has got a result", func() bool { return len(w.Net.Received("api.example.com", testnet.Path("/hook"))) > 0 })
	got := w.Net.Received("api.example.com", testnet.Path("/hook"))[0]
	if got.Header.Get("X-Secret") != harness.TestSecret || got.Header.Get("X-Own") != "own" || got.Method != "POST" {
		t.Errorf("the webhook got %+v", got)
	}
	w.Until("the runs of all have ended", func() bool {
		return scheduleOf(w, box, refused.ID).TotalRuns > 0 && scheduleOf(w, box, prompt.ID).TotalRuns > 0
	})
	if p := scheduleOf(w, box, prompt.ID); p.LastRunStatus != "completed" || p.LastError != "" {
		t.Errorf("a prompt: %+v", p)
	}
	if f := scheduleOf(w, box, refused.ID); f.LastRunStatus != "failed" || f.TotalFailures != f.TotalRuns {
		t.Errorf("a command that fails: %+v", f)
	}
	w.NothingReached("evil.example.net")
	checkRuns(t, w, box, s.ID)
	if out := w.MustSh(box, "sort -u ran"); out != "run\n" {
		t.Errorf("the box has run %q", out)
	}
}

// checkRuns requires that the box has a successful run of a schedule.
func checkRuns(t *testing.T, w *harness.World, box, schedule string) {
	t.Helper()
	var list struct {
		Runs []struct {
			ID         string `json:"id"`
			ScheduleID string `json:"schedule_id"`
			Status     string `json:"status"`
		}
	}
	if err := w.Client.Do(t.Context(), "GET", api.BoxPath(box, "runs"), nil, &list); err != nil {
		t.Fatal(err)
	}
	last := scheduleOf(w, box, schedule)
	for _, r := range list.Runs {
		if r.ScheduleID == schedule && r.Status == "completed" {
			var run struct{ Output string }
			if err := w.Client.Do(t.Context(), "GET", api.BoxPath(box, "runs/"+r.ID), nil, &run); err != nil || run.Output != "box /workspace/home/src\n" {
				t.Errorf("the run printed %q, %v", run.Output, err)
			}
			return
		}
	}
	data, _ := json.Marshal(list)
	t.Errorf("no run of %+v is listed: %s", last, data)
}

// A killed gateway does not repeat a run that had begun, and makes up once for runs missed while it was down.
func TestSchedulesAcrossACrash(t *testing.T) {
	t.Parallel()
	w := clockWorld(t)
	box := w.Create(map[string]any{})
	s := schedule(w, box, map[string]any{"type": "exec", "cron": "@yearly", "command": []string{"sh", "-c", "echo began >> began; sleep 600"}})
	began := func(n int) {
		t.Helper()
		w.Until("a run has begun", func() bool {
			out, _ := w.Sh(box, "grep -c began began")
			return strings.TrimSpace(out) == strconv.Itoa(n)
		})
	}
	const year = 366 * 24 * time.Hour
	w.ShiftClock(year)
	began(1)
	w.Kill()
	w.StartIfStopped()
	if now := scheduleOf(w, box, s.ID); now.TotalRuns != 1 || now.TotalFailures != 1 || now.LastRunStatus != "failed" || now.LastError == "" {
		t.Errorf("after the crash: %+v", now)
	}
	began(1)
	w.Kill()
	w.ShiftClock(5 * year)
	w.StartIfStopped()
	began(2)
	w.MustDelete(box)
}
