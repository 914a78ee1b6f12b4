package repotest

import (
	"testing"

	"boxgate/internal/structure/measure"
)

// The limits for functions, in lines: what one can still read at a glance. `make structure` prints where each package is.
const (
	maxMedianFunction = 10
	maxP90Function    = 26
	maxFunction       = 59
)

// TestFunctionsAreShort holds functions to the limits.
func TestFunctionsAreShort(t *testing.T) {
	atRoot(t)
	packages, err := measure.Module(".")
	if err != nil {
		t.Fatal(err)
	}
	var functions []measure.Function
	for _, p := range packages {
		functions = append(functions, p.Functions...)
	}
	for _, f := range functions {
		if f.Lines > maxFunction {
			t.Errorf("%s has %d lines; the limit is %d", f.Name, f.Lines, maxFunction)
		}
	}
	if s := measure.SizesOf(functions); s.Median > maxMedianFunction || s.P90 > maxP90Function {
		t.Errorf("functions have a median of %d lines and a 90th percentile of %d; the limits are %d and %d",
			s.Median, s.P90, maxMedianFunction, maxP90Function)
	}
}
