package fault

import (
	"testing"

	"boxgate/e2e/harness"
)

// The gateway fails at every step of a change of a named policy that two boxes follow, both one that opens and one that
// closes. Both boxes have the old policy or both the new one, in the API, the kernel and the store.
func TestAttackDuringFaultsOfNamedPolicies(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	const path = "/v2/box/settings/network-policies/web"
	set := func(isWide bool) error {
		return w.Client.Do(t.Context(), "PUT", path, map[bool]map[string]any{true: wide, false: narrow}[isWide], nil)
	}
	if err := set(false); err != nil {
		t.Fatal(err)
	}
	var raiders []*harness.Raider
	for _, name := range []string{"first", "second"} {
		raiders = append(raiders, w.Raid(w.Create(map[string]any{"name": name, "network_policy": map[string]any{"named": "web"}})))
	}
	both := func(what string) bool {
		t.Helper()
		first, second := agrees(raiders[0], what+", the first box"), agrees(raiders[1], what+", the second box")
		db := stored(w)
		defer db.Close()
		report, err := db.Verify() // compares the policies of the boxes with the named one
		if err != nil || len(report.Problems) > 0 || first != second {
			t.Errorf("%s: the first box is wide: %v, the second: %v; the store: %+v %v", what, first, second, report, err)
		}
		return first
	}
	isWide := false
	for _, step := range stepsOfNamed {
		for range 2 { // opening and closing
			for _, kind := range kindsOf(step) {
				what := kind + " at " + step
				err := failing(w, kind, step, func() error { return set(!isWide) })
				if kind != harness.FaultDie && err == nil {
					t.Errorf("%s: the answer was a success", what)
				}
				isNow := both(what)
				if past := isMark(step); isNow != (isWide != past) {
					t.Errorf("%s: wide was %v and is %v", what, isWide, isNow)
				}
				isWide = isNow
			}
			isWide = !isWide
			if err := set(isWide); err != nil {
				t.Fatalf("after the faults at %q: %v", step, err)
			}
			if got := both("after " + step); got != isWide || t.Failed() {
				t.Fatalf("after the faults at %q a change left wide=%v", step, got)
			}
		}
	}
	s.assertHolds()
}
