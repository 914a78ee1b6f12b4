package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestParseFlaky(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"a TestX 2026-01-31", "a TestX yesterday cause", "a TestX/sub 2026-01-31 cause", "a TestX 2026-01-31 c\na TestX 2026-02-01 d"} {
		if list, err := parseFlaky(bad); err == nil {
			t.Errorf("%q is accepted: %v", bad, list)
		}
	}
}

// TestListedTestsExist: the tests of the committed list exist.
func TestListedTestsExist(t *testing.T) {
	t.Parallel()
	list, err := parseFlaky(committed)
	if err != nil {
		t.Fatal(err)
	}
	for id := range list {
		dir, ours := strings.CutPrefix(id.pkg, "boxgate")
		files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
		if err != nil || !ours {
			t.Errorf("%v: %v", id, err)
		}
		found := false
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found = found || regexp.MustCompile(`(?m)^func `+regexp.QuoteMeta(id.test)+`\(`).Match(text)
		}
		if !found {
			t.Errorf("flaky.txt lists %v, which does not exist", id)
		}
	}
}
