package repotest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"boxgate/internal/mutants/mutation"
)

// promiseTables are the sections of docs/security.md whose rows mutants can name.
var promiseTables = []string{"What is promised", "Limits of a box", "When something fails"}

// promises returns the first cells of the tables of docs/security.md, by section, without the tables' heads.
func promises(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	var section string
	for line := range strings.Lines(string(text)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(title)
		}
		if strings.HasPrefix(line, "|---") { // the line before is the head of a table
			out[section] = out[section][:len(out[section])-1]
		}
		row, ok := strings.CutPrefix(line, "| ")
		if !ok {
			continue
		}
		first, _, _ := strings.Cut(row, " | ")
		out[section] = append(out[section], first)
	}
	for _, section := range promiseTables {
		if len(out[section]) == 0 {
			t.Fatalf("docs/security.md has no table under %q", section)
		}
	}
	return out
}

// testsByPackage returns the names of the tests and fuzz targets of each directory.
func testsByPackage(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, s := range sources(t) {
		if !strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		dir := "./" + filepath.ToSlash(filepath.Dir(s.path))
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				out[dir] = append(out[dir], f.Name.Name)
			}
		}
	}
	return out
}

// TestMutantsFitTheSources: each mutant applies to the present sources and results in Go code that parses, is in the
// folder of a package that it mutates, and names existing promises and tests.
func TestMutantsFitTheSources(t *testing.T) {
	atRoot(t)
	mutants, err := mutation.Load("mutants")
	if err != nil {
		t.Error(err)
	}
	promises, tests := promises(t), testsByPackage(t)
	known := map[string]bool{}
	for _, section := range promiseTables {
		for _, p := range promises[section] {
			known[p] = true
		}
	}
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	src := mutation.NewSources(root)
	for _, m := range mutants {
		t.Run(m.Name, func(t *testing.T) {
			if dir := path.Dir(m.Name); !slices.Contains(m.Packages(), dir) {
				t.Errorf("is in mutants/%s, but mutates %q", dir, m.Packages())
			}
			for _, p := range m.Promises {
				if !known[p] {
					t.Errorf("no table of docs/security.md has a row that begins with %q", p)
				}
			}
			for _, test := range m.Tests {
				if err := namesTest(test, tests); err != nil {
					t.Error(err)
				}
			}
			texts, err := m.Apply(src)
			if err != nil {
				t.Error(err)
			}
			for name, text := range texts {
				if _, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution); err != nil && filepath.Ext(name) == ".go" {
					t.Errorf("the mutated %v", err)
				}
			}
		})
	}
}

// TestEveryPromiseHasOneOrTwoMutants: each promise must be tested by a mutant, and each mutant takes time.
func TestEveryPromiseHasOneOrTwoMutants(t *testing.T) {
	atRoot(t)
	mutants, err := mutation.Load("mutants")
	if err != nil {
		t.Error(err)
	}
	tried := map[string]int{}
	for _, m := range mutants {
		for _, p := range m.Promises {
			tried[p]++
		}
	}
	for p, n := range tried {
		if n > 2 {
			t.Errorf("%d mutants break one promise, and two suffice: %s", n, p)
		}
	}
	for _, p := range promises(t)["What is promised"] {
		if tried[p] == 0 {
			t.Errorf("no mutant takes away what holds this promise: %s (docs/mutants.md)", p)
		}
	}
}

// TestMutantsAreNamedAfterTheirPromise: the name of a mutant consists of words of its promise, in order, that no other
// promise has. Several mutants of a package for one promise differ by a dot and a word.
func TestMutantsAreNamedAfterTheirPromise(t *testing.T) {
	atRoot(t)
	mutants, err := mutation.Load("mutants")
	if err != nil {
		t.Error(err)
	}
	promises := promises(t)
	for _, m := range mutants {
		name, _, _ := strings.Cut(path.Base(m.Name), ".")
		var named []string
		for _, section := range promiseTables {
			for _, p := range promises[section] {
				if inOrder(strings.Split(name, "-"), wordsOf(p)) {
					named = append(named, p)
				}
			}
		}
		if len(named) != 1 || !slices.Contains(m.Promises, named[0]) {
			t.Errorf("mutants/%s.txtar: its name is words of these promises: %q, and should be of one that it breaks: %q", m.Name, named, m.Promises)
		}
	}
}

var wordLetters = regexp.MustCompile("[a-z0-9]+")

// wordsOf returns the words of a text in lower case, without apostrophes: "host's" is hosts, "HTTP/2" is http and 2.
func wordsOf(text string) []string {
	return wordLetters.FindAllString(strings.ReplaceAll(strings.ToLower(text), "'", ""), -1)
}

// inOrder reports whether some is a subsequence of all.
func inOrder(some, all []string) bool {
	for _, w := range all {
		if len(some) > 0 && some[0] == w {
			some = some[1:]
		}
	}
	return len(some) == 0
}

func namesTest(test mutation.Test, tests map[string][]string) error {
	names, ok := tests[test.Package]
	if !ok {
		return fmt.Errorf("%s: no such package with tests", test)
	}
	for _, name := range names {
		if test.Matches(name) && (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz")) {
			return nil
		}
	}
	return fmt.Errorf("%s: no such test", test)
}
