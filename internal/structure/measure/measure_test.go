package measure

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModule(t *testing.T) {
	packages, err := Module("testdata/module")
	if err != nil {
		t.Fatal(err)
	}
	want := []Package{{
		Dir: "a", Files: 2, Lines: 18,
		Functions: []Function{{Name: "a/method.go:4 Do", Lines: 5}, {Name: "a/method.go:10 short", Lines: 1}},
	}}
	if diff := cmp.Diff(want, packages); diff != "" {
		t.Errorf("measured differently (-want +got):\n%s", diff)
	}
}

func TestLongest(t *testing.T) {
	functions := []Function{{"a", 1}, {"b", 3}, {"c", 3}, {"d", 2}}
	if diff := cmp.Diff([]Function{{"b", 3}, {"c", 3}}, Longest(functions, 2)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := Longest(functions[:1], 2); len(got) != 1 {
		t.Errorf("Longest of one = %v", got)
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
