package fault

import (
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// The gateway fails while it pauses and resumes a box. Afterwards the box is paused or running as the API reports. The
// next command wakes it, and its policy applies the whole time.
func TestAttackDuringFaultsOfPauseAndResume(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	r := w.Raid(makeNarrow(w))
	call := func(what string) func() error {
		return func() error { return w.Client.Do(t.Context(), "POST", api.BoxPath(r.Box, what), nil, nil) }
	}
	for _, step := range stepsOfPause {
		for _, kind := range kindsOf(step) {
			what := kind + " at " + step
			operation := call("pause")
			if step == "resume: box thawed" {
				if err := operation(); err != nil {
					t.Fatal(err)
				}
				operation = call("resume")
			}
			if err := failing(w, kind, step, operation); err == nil {
				t.Errorf("%s: the answer was a success", what)
			}
			var view struct{ Status string }
			if err := w.Client.Get(t.Context(), api.BoxPath(r.Box, "status"), &view); err != nil || view.Status != "idle" && view.Status != "paused" {
				t.Errorf("%s: %+v %v", what, view, err)
			}
			harness.Contains(t, w.MustSh(r.Box, "echo awake"), "awake")
			agrees(r, what)
		}
	}
	s.assertHolds()
}

// The gateway fails at every step of restarting a box whose first process was killed. Then the box runs completely or
// not at all, and the next call starts it, under its policy.
func TestAttackDuringFaultsOfRestart(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	box := makeNarrow(w)
	for _, step := range stepsOfRestart {
		for _, kind := range kindsOf(step) {
			what := kind + " at " + step
			if err := lab.KillAndAwait(w.InitOf(box)); err != nil {
				t.Fatal(err)
			}
			w.UntilStatus(box, "error")
			if err := failing(w, kind, step, func() error {
				return w.Client.Do(t.Context(), "POST", api.BoxPath(box, "resume"), nil, nil)
			}); err == nil {
				t.Errorf("%s: the answer was a success", what)
			}
			if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "resume"), nil, nil); err != nil {
				t.Fatalf("%s: and then: %v", what, err)
			}
			harness.Contains(t, w.MustSh(box, "echo awake"), "awake")
			agrees(w.Raid(box), what)
		}
	}
	s.assertHolds()
}

// TestAttackPolicyTightenedInTheMiddleOfARestart tightens the policy of a box during its restart, before it has a
// network and after. The new policy applies from its first instruction on.
func TestAttackPolicyTightenedInTheMiddleOfARestart(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	for _, step := range []string{"restart: namespaces pinned", "launch: first process started"} {
		box := w.Create(map[string]any{"network_policy": wide})
		w.MustSh(box, "curl -k -sS -o /dev/null https://api.example.com/")
		if err := lab.KillAndAwait(w.InitOf(box)); err != nil {
			t.Fatal(err)
		}
		w.UntilStatus(box, "error")
		w.Arm(harness.FaultWait, step)
		done := make(chan error, 1)
		go func() { done <- w.Client.Do(t.Context(), "POST", api.BoxPath(box, "resume"), nil, nil) }()
		w.Until(step, func() bool { return !w.Armed() })
		w.SetPolicy(box, harness.Custom("plain.example.com"))
		w.Release()
		if err := <-done; err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		for _, target := range []string{"https://api.example.com/", "https://" + extra[0].String() + "/"} {
			if out, code := w.Sh(box, "curl -k -sS -m 60 "+target); code == 0 || code == 28 {
				t.Errorf("%s: the old policy is in force for %s: %d %s", step, target, code, out)
			}
		}
		w.MustSh(box, "curl -sS -o /dev/null http://plain.example.com/")
		w.MustDelete(box)
	}
	s.assertHolds()
}
