package exchange

import (
	"testing"

	"boxgate/policy"
)

// TestLiteralsDoNotAllocate: a rule without sources is used as it is.
func TestLiteralsDoNotAllocate(t *testing.T) {
	var core Core
	headers := []policy.Header{{Name: "A", Value: policy.NewSecret("1")}, {Name: "B", Value: policy.NewSecret("2")}}
	if n := testing.AllocsPerRun(100, func() { _, _ = core.Literals(t.Context(), headers) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
