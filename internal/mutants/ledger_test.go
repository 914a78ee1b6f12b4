package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLedgerGoesOnWhereARunStopped(t *testing.T) {
	root := repository(t)
	ledger := filepath.Join(t.TempDir(), "ledger.tsv")
	run := func(want ...string) {
		t.Helper()
		status, out := runCommand(t, "-C", root, "-ledger", ledger, "-run", "^(killed|gate/children|survives)$")
		if status != 1 {
			t.Errorf("status %d, want 1", status)
		}
		wantAll(t, out, append(want, "2 killed, 1 survived, 0 broken", "survived: survives")...)
	}
	run("killed    killed", "killed    gate/children")
	run("2 of these were killed by an earlier run") // the survivor is run again
	for name, add := range map[string]string{
		"mutants/gate/children.txtar": "<<<<\nreturn true\n====\nreturn age < 200\n>>>>\n",
		"gate/more_test.go":           "package gate\n",
	} {
		path := filepath.Join(root, name)
		old, _ := os.ReadFile(path)
		if err := os.WriteFile(path, append(old, add...), 0o600); err != nil {
			t.Fatal(err)
		}
		run("killed    gate/children")
	}
	text, err := os.ReadFile(ledger)
	if err != nil || strings.Count(string(text), "\tgate/children\t") != 3 {
		t.Errorf("%v: %s", err, text)
	}
	if err := os.WriteFile(ledger, append(text, "torn"...), 0o600); err != nil {
		t.Fatal(err)
	}
	run("2 of these were killed by an earlier run")
	if status, out := runCommand(t, "-C", root, "-ledger", ledger, "-fresh", "-run", "^killed$"); status != 0 || strings.Contains(out, "earlier run") {
		t.Errorf("status %d: %s", status, out)
	}
}
