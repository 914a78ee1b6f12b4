package fault

import (
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// An audit survives a killed gateway with its remaining time. Setting the wall clock back does not prolong it, setting it forward ends it.
// One that ended while the gateway was down is closed when it starts, and no key can have one of more than a day.
func TestAttackAuditOutlivesItsTime(t *testing.T) {
	t.Parallel()
	w := harness.NewCapturedStopped(t, nil)
	w.Env = []string{harness.FaultsFile + "=" + w.FaultsPath()}
	w.StartIfStopped()
	box := w.Create(map[string]any{"network_policy": harness.Custom("www.example.com")})
	reaches := func(want bool) {
		t.Helper()
		if out, code := w.Sh(box, "curl -k -sS -m 30 -o /dev/null https://cdn.example.org/"); (code == 0) != want {
			t.Errorf("exit status %d, want it reached: %v\n%s", code, want, out)
		}
		w.MustSh(box, "curl -k -sS -m 30 -o /dev/null https://www.example.com/")
	}
	w.Audit(box, time.Hour)
	reaches(true)
	w.ShiftClock(-years)
	w.Kill()
	w.StartIfStopped()
	if left := leases(w, box)["audit "]; left < 1 || left > 3600 {
		t.Errorf("after a restart, %d seconds are left", left)
	}
	w.ShiftClock(0)
	reaches(true)
	w.ShiftClock(2 * time.Hour)
	w.Until("the audit has ended", func() bool { return len(leases(w, box)) == 0 })
	w.ShiftClock(0)
	reaches(false)

	w.Audit(box, 2*time.Second)
	w.Kill()
	ends := time.Now().Add(2 * time.Second)
	w.Until("its time has passed", func() bool { return time.Now().After(ends) })
	w.StartIfStopped()
	reaches(false)
	body := map[string]any{"enforcement": "audit", "expires_in": 24*3600 + 1}
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/network-policy/enforcement"), body, nil); err == nil {
		t.Error("an audit of more than a day")
	}
	reaches(false)
}
