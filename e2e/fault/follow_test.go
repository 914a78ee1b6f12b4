package fault

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// A box follows its container, and is attached manually, while the gateway fails at every step and the box attacks from
// the moment its namespace is pinned. No traffic that its policy denies gets out, and in the end the box has its
// network under that policy.
func TestAttackWhileABoxIsAttachedAgain(t *testing.T) {
	t.Parallel()
	d := harness.NewDocker(t)
	w := harness.NewCapturedStopped(t, func(c *config.Config) { c.Limits.NewConnections = 10000 })
	w.AskDocker(d)
	w.StartIfStopped()
	s := besiege(w, harness.AttackerAt(101))
	c := d.Run("guest")
	policy, err := json.Marshal(wide)
	if err != nil {
		t.Fatal(err)
	}
	out, code := w.GatewayCommand("box", "attach", "--json", "--container", "guest", "--policy", string(policy))
	var box struct{ ID string }
	if err := json.Unmarshal([]byte(out), &box); code != 0 || err != nil {
		t.Fatal(out)
	}
	settles := func(when string) {
		t.Helper()
		w.StartIfStopped()
		w.Until(when+": the box has its network, under its policy", func() bool {
			out, code := c.Sandbox().Sh("ip -o link")
			status, _ := w.BoxStatus(box.ID)
			return code == 0 && strings.Contains(out, "eth0") && status == string(api.StatusIdle)
		})
		if isWide, _ := policyNow(w, box.ID); !isWide {
			t.Errorf("%s: its policy is another", when)
		}
		if pins, err := os.ReadDir(filepath.Join(lab.RunDir(w.Dir), "attached")); err != nil || len(pins) != 1 {
			t.Errorf("%s: pinned: %v %v", when, pins, err)
		}
	}
	settles("attached")
	for _, step := range stepsOfReattach {
		for _, kind := range kindsOf(step) {
			when := kind + " at " + step
			w.Arm(kind, step)
			c.Stop()
			c.Start()
			if kind == harness.FaultDie {
				w.AwaitExit(when)
			}
			settles(when)
			w.MustReachStep(when)
		}
	}
	s.assertHolds()
	if n := s.boxes.Load(); n < int64(len(stepsOfReattach)) {
		t.Errorf("the siege has entered only %d namespaces", n)
	}
}

// If the gateway dies during a manual attach, the box is attached afterwards, or gone: never attached to the old
// sandbox under the new name.
func TestReattachIsWholeAfterFaults(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	w.Env = append(w.Env, harness.FaultsFile+"="+w.FaultsPath())
	w.StartIfStopped()
	sandboxes := [2]*harness.ForeignBox{harness.NewForeignBox(t), harness.NewForeignBox(t)}
	out, code := w.GatewayCommand("box", "attach", "--json", "--pid", strconv.Itoa(sandboxes[0].PID), "--policy", "allow-all")
	var box struct{ ID string }
	if err := json.Unmarshal([]byte(out), &box); code != 0 || err != nil {
		t.Fatal(out)
	}
	at := 0
	for _, step := range stepsOfReattach {
		for _, kind := range kindsOf(step) {
			when := kind + " at " + step
			w.Arm(kind, step)
			next := sandboxes[1-at]
			_, code := w.GatewayCommand("box", "reattach", box.ID, "--pid", strconv.Itoa(next.PID))
			w.MustReachStep(when)
			if kind == harness.FaultDie {
				w.AwaitExit(when)
				w.StartIfStopped()
			}
			if step != "disconnect: off the network" && code == 0 {
				t.Errorf("%s: it was attached", when)
			}
			var view struct{ Attached api.Attached }
			if err := w.Client.Get(t.Context(), api.BoxPath(box.ID), &view); err != nil {
				t.Fatal(err)
			}
			for i, f := range sandboxes {
				out, _ := f.Sh("ip -o link")
				if strings.Contains(out, "eth0") && view.Attached.Ref != strconv.Itoa(sandboxes[i].PID) {
					t.Errorf("%s: the API says %+v, and sandbox %d has the network", when, view.Attached, i)
				}
			}
			if out, code := w.GatewayCommand("box", "reattach", box.ID, "--pid", strconv.Itoa(next.PID)); code != 0 {
				t.Fatalf("%s: not attached afterwards: %s", when, out)
			}
			if out, code := next.Sh("curl -sS --max-time 60 http://plain.example.com/"); code != 0 {
				t.Errorf("%s: %s", when, out)
			}
			if out, _ := sandboxes[at].Sh("ip -o link"); strings.Contains(out, "eth0") {
				t.Errorf("%s: left in the other namespace: %s", when, out)
			}
			at = 1 - at
		}
	}
}
