// Package policytest compares golden tables, for the tests of policy and of the packages below it.
package policytest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"boxgate/policy/document"
)

// The tables under testdata are meant to be read. After a change of behaviour, `go test ./policy/... -run Golden -update`
// writes what is decided now, and the difference is reviewed like code.
var update = flag.Bool("update", false, "rewrite the golden tables")

// EachArchive runs rewrite on each archive and compares the result with the file.
func EachArchive(t *testing.T, glob string, rewrite func(*testing.T, *txtar.Archive)) {
	files, err := filepath.Glob(glob)
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			a := txtar.Parse(want)
			rewrite(t, a)
			got := txtar.Format(a)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			diffLines(t, string(want), string(got))
		})
	}
}

func diffLines(t *testing.T, want, got string) {
	t.Helper()
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		var a, b string
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			t.Errorf("line %d:\nwant %s\ngot  %s", i+1, a, b)
		}
	}
}

// ProblemLines writes problems, one a line.
func ProblemLines(ps []document.Problem) []byte {
	var out strings.Builder
	for _, p := range ps {
		at := p.Pointer
		if at == "" {
			at = "(all)"
		}
		fmt.Fprintf(&out, "%s: %s\n", at, p.Message)
	}
	return []byte(out.String())
}
