package exchange

import (
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
)

// TestLiteralsDoNotAllocate: a rule without sources is used as it is.
func TestLiteralsDoNotAllocate(t *testing.T) {
	var core Core
	headers := []policy.Header{{Name: "A", Value: name.NewSecret("1")}, {Name: "B", Value: name.NewSecret("2")}}
	if n := testing.AllocsPerRun(100, func() { _, _ = core.Literals(t.Context(), headers) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
