package fault

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// An attach that fails, panics or dies with the gateway at any of its steps leaves the namespace unchanged once the
// gateway runs again, and so does a detach that dies.
func TestAttachIsWholeAfterFaults(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	w.Env = append(w.Env, harness.FaultsFile+"="+w.FaultsPath())
	w.StartIfStopped()
	f := harness.NewForeignBox(t)
	attach := []string{"box", "attach", "--pid", strconv.Itoa(f.PID), "--name", "guest", "--policy", "allow-all"}
	clean := func(when string) {
		t.Helper()
		w.StartIfStopped()
		if out, _ := f.Sh("ip -o link"); strings.Contains(out, "eth0") {
			t.Errorf("%s: left in the namespace: %s", when, out)
		}
		if out, code := w.GatewayCommand("box", "list", "--json"); code != 0 || strings.Contains(out, "guest") {
			t.Errorf("%s: left in the store: %s", when, out)
		}
		if pins, err := os.ReadDir(filepath.Join(lab.RunDir(w.Dir), "attached")); err != nil || len(pins) != 0 {
			t.Errorf("%s: left pinned: %v %v", when, pins, err)
		}
		if rules, err := w.Net.Gateway().Run(t.Context(), "nft", "list", "chains"); err != nil || strings.Contains(rules, "chain plan_") {
			t.Errorf("%s: left in the rules (%v): %s", when, err, rules)
		}
	}
	for _, step := range stepsOfAttach {
		for _, kind := range kindsOf(step) {
			when := kind + " at " + step
			w.Arm(kind, step)
			if out, code := w.GatewayCommand(attach...); code == 0 {
				t.Errorf("%s: %s", when, out)
			}
			w.MustReachStep(when)
			if kind == harness.FaultDie {
				w.AwaitExit(when)
			}
			clean(when)
		}
	}
	for _, step := range []string{"delete: begun", "remove: link deleted", "delete: deletion stored", "delete: nothing runs", "delete: record gone"} {
		if out, code := w.GatewayCommand(attach...); code != 0 {
			t.Fatal(out)
		}
		w.Arm(harness.FaultDie, step)
		if _, code := w.GatewayCommand("box", "detach", "guest"); code == 0 {
			t.Errorf("die at %s: detached", step)
		}
		w.AwaitExit(step)
		w.StartIfStopped()
		if step == "delete: begun" || step == "remove: link deleted" { // the box is unchanged: its deletion was not recorded yet
			if out, code := f.Sh("curl -sS --max-time 60 http://plain.example.com/"); code != 0 {
				t.Errorf("die at %s: %s", step, out)
			}
			if out, code := w.GatewayCommand("box", "detach", "guest"); code != 0 {
				t.Errorf("die at %s: %s", step, out)
			}
		}
		clean("die at " + step)
	}
}
