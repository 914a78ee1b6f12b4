package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheRunDirectoryIsNobodyElses: one that is not there, is empty or is a launcher's will do, also with other files in it.
func TestTheRunDirectoryIsNobodyElses(t *testing.T) {
	state, run := t.TempDir(), filepath.Join(t.TempDir(), "run")
	check := func(refused bool) {
		t.Helper()
		if err := CheckRunDir(state, run); (err != nil) != refused || refused && !strings.Contains(err.Error(), "theirs") {
			t.Error(err)
		}
	}
	mkdir := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.MkdirAll(filepath.Join(run, name), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	check(false)
	mkdir("")
	check(false)
	mkdir("theirs")
	check(true)
	mkdir("netns")
	check(false)
	own, others, err := OfRun(state, run)
	if err != nil || len(own) != 1 || len(others) != 1 || filepath.Base(own[0]) != "netns" {
		t.Error(own, others, err)
	}
}
