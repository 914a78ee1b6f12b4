package measure

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModule(t *testing.T) {
	packages, err := Module(t.Context(), "testdata/module")
	if err != nil {
		t.Fatal(err)
	}
	want := []Package{{
		Dir: "a",
		Files: []File{
			{Name: "field.go", Lines: 3, Uses: []Use{{"make.go", "make1"}, {"type.go", "field"}}},
			{Name: "helper.go", Lines: 7, Uses: []Use{{"method.go", "Do"}, {"type.go", "current"}}},
			{Name: "make.go", Lines: 3, Uses: []Use{{"type.go", "T"}}},
			{Name: "method.go", Lines: 5, Uses: []Use{{"helper.go", "helper"}, {"type.go", "T"}}},
			{Name: "type.go", Lines: 13},
		},
		Circles: []Circle{{Files: []string{"helper.go", "method.go"}, Lines: 12}},
		Functions: []Function{
			{Name: "a/field.go:3 field", Lines: 1},
			{Name: "a/helper.go:3 helper", Lines: 5},
			{Name: "a/make.go:3 make1", Lines: 1},
			{Name: "a/method.go:3 Do", Lines: 3},
			{Name: "a/type.go:11 Run", Lines: 1},
		},
	}}
	if diff := cmp.Diff(want, packages); diff != "" {
		t.Errorf("measured differently (-want +got):\n%s", diff)
	}
}

func TestSizes(t *testing.T) {
	var functions []Function
	for n := range 101 {
		functions = append(functions, Function{Lines: n})
	}
	if got, want := SizesOf(functions), (Sizes{Count: 101, Median: 50, P90: 90, Max: 100}); got != want {
		t.Errorf("SizesOf = %+v, want %+v", got, want)
	}
	if got := SizesOf(nil); got != (Sizes{}) {
		t.Errorf("SizesOf(nil) = %+v", got)
	}
}
