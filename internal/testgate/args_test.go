package main

import (
	"slices"
	"strings"
	"testing"
)

func TestArguments(t *testing.T) {
	t.Parallel()
	id := testID{"boxgate/x", "TestX"}
	for _, c := range []struct{ args, packages, all, only string }{
		{"-timeout 30m ./...", "./...", "-timeout 30m ./...", "-timeout 30m -count=1 -run=^TestX$ boxgate/x"},
		{"-v -race -run TestY -count 3 ./a ./b", "./a ./b", "-v -race -run TestY -count 3 ./a ./b", "-race -count=1 -run=^TestX$ boxgate/x"},
		{"-json -v=false -cover=true --tags=a -coverprofile=f -p 2 ./a", "./a", "-cover=true --tags=a -coverprofile=f -p 2 ./a", "-cover=true --tags=a -p 2 -count=1 -run=^TestX$ boxgate/x"},
		{"-test.run X ./a -args -v b", "./a", "-test.run X ./a -args -v b", "-count=1 -run=^TestX$ boxgate/x -args -v b"},
	} {
		a := parseArguments(strings.Fields(c.args))
		if !slices.Equal(a.packages, strings.Fields(c.packages)) || strings.Join(a.all(), " ") != c.all || strings.Join(a.only(id), " ") != c.only {
			t.Errorf("%s: packages %q, all %q, only %q", c.args, a.packages, a.all(), a.only(id))
		}
	}
}
