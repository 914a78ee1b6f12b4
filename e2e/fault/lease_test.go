package fault

import (
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
)

// leases returns the temporary entries of a box's policy from the API.
func leases(w *harness.World, box string) map[string]int64 {
	w.T.Helper()
	var state struct {
		Leases []struct {
			Action, Entry string
			ExpiresIn     int64 `json:"expires_in"`
		}
	}
	if err := w.Client.Get(w.T.Context(), api.BoxPath(box, "config/network-policy"), &state); err != nil {
		w.T.Fatal(err)
	}
	out := map[string]int64{}
	for _, l := range state.Leases {
		out[l.Action+" "+l.Entry] = l.ExpiresIn
	}
	return out
}

// Leases survive a killed gateway, with their remaining time. Setting the wall clock back, at any time, does not
// prolong them. Setting it forward ends temporary permissions immediately and keeps temporary denials. Leases that
// ended while the gateway was down are closed when it starts.
func TestAttackLeaseOutlivesItsTime(t *testing.T) {
	t.Parallel()
	w := harness.NewCapturedStopped(t, func(c *config.Config) {
		c.Policy.Ceiling.Spec = policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"evil.example.net"}}
	})
	w.Env = []string{harness.FaultsFile + "=" + w.FaultsPath()}
	w.StartIfStopped()
	box := w.Create(map[string]any{"network_policy": harness.Custom("www.example.com", "multi.example.com")})
	reaches := func(host string, want bool) {
		t.Helper()
		out, code := w.Sh(box, "curl -k -sS -m 30 -o /dev/null https://"+host+"/")
		if (code == 0) != want {
			t.Errorf("%s: exit status %d, want it reached: %v\n%s", host, code, want, out)
		}
	}
	w.Lease(box, "allow", time.Hour, "api.example.com", "evil.example.net")
	w.Lease(box, "deny", time.Hour, "multi.example.com")
	reaches("api.example.com", true)
	reaches("evil.example.net", false) // beyond the ceiling
	reaches("multi.example.com", false)

	w.ShiftClock(-years)
	w.Kill()
	w.StartIfStopped()
	left := leases(w, box)
	if len(left) != 3 || left["allow api.example.com"] > 3600 || left["deny multi.example.com"] > 3600 || left["allow api.example.com"] < 1 {
		t.Errorf("after a restart: %v", left)
	}
	reaches("multi.example.com", false)

	w.ShiftClock(0)
	reaches("api.example.com", true)
	w.ShiftClock(2 * time.Hour)
	w.Until("the lease has ended", func() bool { return len(leases(w, box)) == 1 })
	w.ShiftClock(0)
	reaches("api.example.com", false)
	reaches("multi.example.com", false)
	reaches("www.example.com", true)

	w.Lease(box, "allow", 2*time.Second, "api.example.com")
	w.Kill()
	ends := time.Now().Add(2 * time.Second)
	w.Until("the lease's time has passed", func() bool { return time.Now().After(ends) })
	w.StartIfStopped()
	reaches("api.example.com", false)
	reaches("www.example.com", true)
	if left := leases(w, box); len(left) != 1 {
		t.Errorf("after its end: %v", left)
	}
}
