package nightly

import "testing"

func TestTierFollowsTheEnvironment(t *testing.T) {
	for value, full := range map[string]bool{"": false, "1": true} {
		t.Setenv(Variable, value)
		if Enabled() != full || Size(1, 10) != map[bool]int{false: 1, true: 10}[full] {
			t.Errorf("%s=%q: enabled %v, size %d", Variable, value, Enabled(), Size(1, 10))
		}
		ran := t.Run("only", func(t *testing.T) {
			Only(t)
			if !full {
				t.Error("a nightly test ran in the gate")
			}
		})
		if !ran {
			t.Errorf("%s=%q: the subtest failed", Variable, value)
		}
	}
}

func TestRootIsSkippedInTheQuickTier(t *testing.T) {
	ran := false
	t.Run("root", func(t *testing.T) {
		Root(t)
		ran = true
	})
	if ran == testing.Short() {
		t.Errorf("short: %v, and a test that needs root ran: %v", testing.Short(), ran)
	}
}
