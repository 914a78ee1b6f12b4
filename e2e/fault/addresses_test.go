package fault

import (
	"fmt"
	"os"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// The host gets a new address, and the gateway fails at every step of protecting it. It is soon protected in every box
// nevertheless. The boxes keep running and keep their access.
func TestAttackDuringFaultsOfNewHostAddresses(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	boxes := []string{makeNarrow(w), w.Create(map[string]any{"network_policy": map[string]any{"mode": "custom", "allowed_cidrs": []string{"9.9.9.0/24"}}})}
	raider := w.Raid(boxes[0])
	isProtected := func(box, address string) bool {
		var d struct{ Verdict, Reason string }
		err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "egress/explain"), map[string]any{"ip": address, "protocol": "udp", "port": 4444}, &d)
		return err == nil && d.Verdict == "deny" && d.Reason == "protected_range"
	}
	n := 0
	for _, step := range stepsOfGlobal {
		for _, kind := range kindsOf(step) {
			n++
			what, address := kind+" at "+step, fmt.Sprintf("9.9.9.%d", n)
			if isProtected(boxes[1], address) {
				t.Fatalf("%s: %s is protected already", what, address)
			}
			w.Arm(kind, step)
			if out, err := w.Net.Gateway().Run(t.Context(), "ip", "addr", "add", address+"/32", "dev", "lo"); err != nil {
				t.Fatal(err, out)
			}
			w.Until(what, func() bool {
				_, err := os.Stat(w.FaultsPath())
				return os.IsNotExist(err)
			})
			if kind == harness.FaultDie {
				w.AwaitExit(what)
				w.StartIfStopped()
			}
			for _, box := range boxes {
				w.Until(what+": protected in "+box, func() bool { return isProtected(box, address) })
			}
		}
		agrees(raider, "after "+step)
	}
	s.assertHolds()
}
