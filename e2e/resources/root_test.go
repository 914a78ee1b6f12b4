package resources

import (
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// TestLimitsHoldForRootOfABox: the limits of a box hold for code that has become its root, with launcher.root.
func TestLimitsHoldForRootOfABox(t *testing.T) {
	t.Parallel()
	rows := []string{"TestAttackOnTheDiskLimit"}
	if nightly.Enabled() {
		rows = append(rows, "TestAttackByFillingTheDisk", "TestAttackByForkBomb", "TestAttackByTakingAllMemory")
	}
	harness.Repeat(t, harness.RootedRun(t.Context(), rows...), rows...)
}
