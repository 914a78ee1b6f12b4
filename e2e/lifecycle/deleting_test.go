package lifecycle

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// newWaitingWorld returns a world whose gateway waits at the steps chosen by a test.
func newWaitingWorld(t *testing.T) *harness.World {
	t.Helper()
	w := harness.Shared(t)
	w.Kill()
	w.Env = append(w.Env, harness.FaultsFile+"="+w.FaultsPath())
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// stateOf returns the state of a box, or "" if there is no such box.
func stateOf(w *harness.World, box string) string {
	var view struct{ Status string }
	_ = w.Client.Get(w.T.Context(), api.BoxPath(box), &view)
	return view.Status
}

// deleteDuring deletes a box while a change of its state waits at a step, and returns the result of the change. It
// fails the test if the change still reaches the step later; "" means no such step.
func deleteDuring(w *harness.World, box, change, step, later string) (changed error) {
	w.T.Helper()
	w.Arm(harness.FaultWait, step)
	ended, deleted := make(chan error, 1), make(chan error, 1)
	go func() { ended <- post(w, box, change) }()
	w.Until(step, func() bool { return !w.Armed() })
	go func() { deleted <- w.Client.Do(w.T.Context(), "DELETE", api.BoxPath(box), nil, nil) }()
	w.Until("the deletion has begun", func() bool { s := stateOf(w, box); return s == "deleted" || s == "" })
	if later != "" {
		w.Arm(harness.FaultError, later)
	}
	w.Release()
	if err := <-deleted; err != nil {
		w.T.Errorf("deleting during %s: %v", change, err)
	}
	changed = <-ended
	if err := os.Remove(w.FaultsPath()); later != "" && err != nil {
		w.T.Errorf("%s went on after the deletion had begun, to %q", change, later)
	}
	return changed
}

// A box that is deleted while it is restarted is gone: it has no kernel state, and its addresses are free.
func TestDeletedWhileItIsStartedAgain(t *testing.T) {
	t.Parallel()
	w := newWaitingWorld(t)
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}})
	if err := syscall.Kill(w.InitOf(box), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.Until("its end is noticed", func() bool { return status(w, box) == "error" })
	if err := deleteDuring(w, box, "resume", "restart: namespaces pinned", "create: authority stored"); err == nil {
		t.Error("a deleted box was started")
	}
	links, err := w.Net.Gateway().Run(t.Context(), "ip", "-o", "link")
	if err != nil || strings.Contains(links, box) {
		t.Errorf("its link is left: %s %v", links, err)
	}
	next := w.Create(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}})
	if out, code := w.Sh(next, "echo up"); code != 0 {
		t.Errorf("the next box: %s", out)
	}
}

// A box that is deleted while it is paused stays deleted, even if the gateway dies before the deletion is complete.
func TestDeletedWhileItIsPaused(t *testing.T) {
	t.Parallel()
	w := newWaitingWorld(t)
	box := w.Create(map[string]any{})
	if err := deleteDuring(w, box, "pause", "pause: box frozen", ""); err == nil {
		t.Error("a deleted box was paused")
	}
	w.Kill()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := stateOf(w, box); s != "" {
		t.Errorf("after a new start it is %s", s)
	}
}
