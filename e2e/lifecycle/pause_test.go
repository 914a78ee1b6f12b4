package lifecycle

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// status returns the status of a box from the API.
func status(w *harness.World, box string) string {
	w.T.Helper()
	var view struct{ Status string }
	if err := w.Client.Get(w.T.Context(), api.BoxPath(box, "status"), &view); err != nil {
		w.T.Fatal(err)
	}
	return view.Status
}

// post calls an endpoint of a box without a body.
func post(w *harness.World, box, call string) error {
	return w.Client.Do(w.T.Context(), "POST", api.BoxPath(box, call), nil, nil)
}

func mustPost(w *harness.World, box, call string) {
	w.T.Helper()
	if err := post(w, box, call); err != nil {
		w.T.Fatalf("%s: %v", call, err)
	}
}

// inHome reads a file of a box from the host.
func inHome(w *harness.World, box, name string) string {
	w.T.Helper()
	found, err := filepath.Glob(filepath.Join(w.Dir, "state", "boxes", box, "upper", "workspace", "home", name))
	if err != nil || len(found) != 1 {
		w.T.Fatalf("%s: %v %v", name, found, err)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		w.T.Fatal(err)
	}
	return string(data)
}

// TestPausedBoxStandsStill: no process of a paused box runs. Its memory and commands continue when it is resumed, and
// its policy, header rules and URLs change without waking it.
func TestPausedBoxStandsStill(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com", "evil.example.net")})
	w.MustSh(box, "setsid sh -c 'while :; do date +%s%N > tick; sleep 0.005; done' >/dev/null 2>&1 & until [ -s tick ]; do sleep 0.01; done")
	var out bytes.Buffer
	wait := w.Background(box, "echo begun > here; until [ -e go ]; do sleep 0.01; done; echo went on", &out)
	w.MustSh(box, "until [ -s here ]; do sleep 0.01; done")
	if got := status(w, box); got != "running" {
		t.Errorf("with a command it is %s", got)
	}

	for range 2 { // the second time has no effect
		mustPost(w, box, "pause")
	}
	still := inHome(w, box, "tick")
	w.SetPolicy(box, harness.Custom("api.example.com"))
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/attach-headers"), map[string]any{"api.example.com": map[string]string{"X-Set": "yes"}}, nil); err != nil {
		t.Error(err)
	}
	var decision struct{ Verdict string }
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "egress/explain"), map[string]any{"host": "evil.example.net", "port": 443}, &decision); err != nil || decision.Verdict != "deny" {
		t.Errorf("explained: %+v %v", decision, err)
	}
	if got := status(w, box); got != "paused" || inHome(w, box, "tick") != still {
		t.Errorf("it is %s, and its clock ticks on from %q to %q", got, still, inHome(w, box, "tick"))
	}

	mustPost(w, box, "resume")
	w.Until("what ran in it runs on", func() bool { return inHome(w, box, "tick") != still })
	if _, code := w.Sh(box, "curl -sS https://evil.example.net/"); code != 35 {
		t.Errorf("the policy set while it was paused: curl exited with %d", code)
	}
	w.NothingReached("evil.example.net")
	mustPost(w, box, "pause")
	w.MustSh(box, "touch go") // a command wakes it
	if code, err := wait(); code != 0 || err != nil || strings.TrimSpace(out.String()) != "went on" {
		t.Errorf("a command that was frozen: %d %v %q", code, err, out.String())
	}
	if got := status(w, box); got != "idle" {
		t.Errorf("at the end it is %s", got)
	}
	mustPost(w, box, "pause")
	w.MustDelete(box)
}

// TestPausedBoxesStayPausedAcrossARestart restarts the gateway with and without a signal.
func TestPausedBoxesStayPausedAcrossARestart(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	w.MustSh(box, "setsid sleep 1000 >/dev/null 2>&1 & echo $! > pid")
	mustPost(w, box, "pause")
	for _, end := range []func() error{w.Stop, func() error { w.Kill(); return nil }} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := status(w, box); got != "paused" {
			t.Errorf("after a restart it is %s", got)
		}
	}
	w.MustSh(box, "kill -0 $(cat pid) && curl -k -sS -o /dev/null https://api.example.com/")
}

// TestKeepAliveIsNotPaused: pausing a box with keep-alive is refused.
func TestKeepAliveIsNotPaused(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"keep_alive": true})
	if err := post(w, box, "pause"); err == nil || !strings.Contains(err.Error(), "keep_alive") {
		t.Errorf("%v", err)
	}
	mustPost(w, box, "resume")
}

// TestEverythingAtOnce runs commands, pauses, resumes and changes of policy concurrently: no command fails, and the box
// ends in a valid state.
func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{})
	var all sync.WaitGroup
	over := make(chan struct{})
	for range 3 {
		all.Go(func() {
			for i := range 6 {
				var out bytes.Buffer
				code, err := w.Client.Exec(t.Context(), box, api.ExecRequest{Command: []string{"echo", "x"}}, &out, &out)
				if err != nil || code != 0 || out.String() != "x\n" {
					t.Errorf("command %d: %d %v %q", i, code, err, out.String())
				}
			}
		})
	}
	var disturbers sync.WaitGroup
	for i, call := range []string{"pause", "resume", "pause"} {
		disturbers.Go(func() {
			for {
				if err := post(w, box, call); err != nil {
					t.Errorf("%s: %v", call, err)
				}
				if i == 1 {
					w.SetPolicy(box, harness.Custom("api.example.com"))
				}
				select {
				case <-over:
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	// A frozen command continues when another one, or this loop, wakes the box.
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-time.After(50 * time.Millisecond):
			_ = post(w, box, "resume")
		}
	}
	close(over)
	disturbers.Wait()
	mustPost(w, box, "resume")
	if got := status(w, box); got != "idle" {
		t.Errorf("at the end it is %s", got)
	}
	w.MustDelete(box)
	if err := post(w, box, "resume"); err == nil {
		t.Error("a deleted box was resumed")
	}
}
