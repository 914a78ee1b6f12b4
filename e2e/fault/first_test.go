package fault

import (
	"strings"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// The first start on a host dies at each of its steps. The next one continues from the present state, and creates
// boxes.
func TestAFirstStartThatDiesHoldsUpNone(t *testing.T) {
	t.Parallel()
	for i, step := range stepsOfStart {
		if i%nightly.Size(4, 1) != 0 {
			continue
		}
		one := strings.HasPrefix(step, "link") || strings.HasPrefix(step, "connect") || strings.HasPrefix(step, "plan")
		if one { // a step of a box that existed before
			continue
		}
		t.Run(step, func(t *testing.T) {
			w := harness.NewStopped(t, lab.Options{})
			w.Env = []string{harness.FaultsFile + "=" + w.FaultsPath()}
			for _, kind := range []string{harness.FaultDie, harness.FaultError}[nightly.Size(1, 0):] {
				w.Arm(kind, step)
				if err := w.Start(t.Context()); err == nil {
					t.Errorf("%s: the gateway started", kind)
				}
				w.MustReachStep(kind + " at " + step)
				w.Kill()
			}
			w.StartIfStopped()
			w.MustSh(w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")}), "curl -sS -k -o /dev/null https://api.example.com/")
		})
	}
}
