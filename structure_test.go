package boxgate_test

import (
	"testing"

	"boxgate/internal/structure/measure"
)

// The limits of structure: what one can still read in one sitting. `make structure` prints where each package is.
const (
	maxCircleFiles    = 12
	maxCircleLines    = 2500
	maxMedianFunction = 10
	maxP90Function    = 26
	maxFunction       = 59
)

// TestStructure holds that no package has so many files referring to each other in a circle that it cannot be read in
// parts, and that functions stay short.
func TestStructure(t *testing.T) {
	packages, err := measure.Module(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	var functions []measure.Function
	for _, p := range packages {
		functions = append(functions, p.Functions...)
		for _, c := range p.Circles {
			if len(c.Files) > maxCircleFiles || c.Lines > maxCircleLines {
				t.Errorf("%s: %d files of %d lines refer to each other in a circle; the limit is %d files and %d lines. "+
					"`go run ./internal/structure -pkg %s` prints what closes it", p.Dir, len(c.Files), c.Lines, maxCircleFiles, maxCircleLines, p.Dir)
			}
		}
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
