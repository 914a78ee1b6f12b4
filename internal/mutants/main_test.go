package main

import (
	"strings"
	"testing"
)

// runCommand runs the command on the toy module and returns its status and its output.
func runCommand(t *testing.T, args ...string) (status int, out string) {
	t.Helper()
	var stdout, stderr strings.Builder
	status = run(t.Context(), append([]string{"-C", "testdata/toy"}, args...), &stdout, &stderr)
	return status, stdout.String() + stderr.String()
}

func wantAll(t *testing.T, out string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
}

func TestKilledMutant(t *testing.T) {
	status, out := runCommand(t, "-run", "^killed$")
	if status != 0 {
		t.Errorf("status %d", status)
	}
	wantAll(t, out, "killed    killed", "by ./gate ^TestChildrenStayOutside$", "1 mutants", "1 killed, 0 survived, 0 broken")
}

func TestKilledMutantOfADeclaration(t *testing.T) {
	status, out := runCommand(t, "-run", "^gate/children$")
	if status != 0 {
		t.Errorf("status %d", status)
	}
	wantAll(t, out, "killed    gate/children", "1 killed, 0 survived, 0 broken")
}

func TestSurvivingMutant(t *testing.T) {
	status, out := runCommand(t, "-run", "killed|survives")
	if status != 1 {
		t.Errorf("status %d, want 1", status)
	}
	wantAll(t, out, "SURVIVED  survives", "The dead come in", "TestNothingOfTheDead$ passes all the same", "survived: survives",
		"1 killed, 1 survived, 0 broken")
}

func TestBrokenMutants(t *testing.T) {
	for name, why := range map[string]string{
		"broken-build":   "do not build",
		"broken-panic":   "did not end with a failure of the test",
		"broken-missing": "no such test ran",
		"broken-skipped": "was skipped",
		"broken-red":     "fails without a mutation as well",
	} {
		t.Run(name, func(t *testing.T) {
			status, out := runCommand(t, "-run", "^"+name+"$")
			if status != 1 {
				t.Errorf("status %d, want 1", status)
			}
			wantAll(t, out, "broken    "+name, why, "0 killed, 0 survived, 1 broken", "broken: "+name)
		})
	}
}

func TestHangingTestIsBroken(t *testing.T) {
	status, out := runCommand(t, "-run", "^broken-hang$", "-timeout", "1s")
	if status != 1 {
		t.Errorf("status %d, want 1\n%s", status, out)
	}
	wantAll(t, out, "broken    broken-hang", "did not end within 1s", "0 killed, 0 survived, 1 broken")
}

func TestListRunsNothing(t *testing.T) {
	status, out := runCommand(t, "-list")
	if status != 0 {
		t.Errorf("status %d", status)
	}
	wantAll(t, out, "killed: Children come in.", "promise Nobody dead", "test    ./gate ^TestNothingOfTheDead$")
}

func TestMistakesOfTheCommand(t *testing.T) {
	for _, args := range [][]string{{"-run", "nothing"}, {"-run", "("}, {"extra"}, {"-C", "testdata/none"}, {"-nosuch"}} {
		if status, out := runCommand(t, args...); status != 2 || out == "" {
			t.Errorf("%q: status %d, want 2, and a word about it: %q", args, status, out)
		}
	}
}
