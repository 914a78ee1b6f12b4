package nightly

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// row is a row of the table of nightly tests: the folder of the package, the test, and the reason.
var row = regexp.MustCompile("(?m)^\\| `([^`]*)\\.(Test\\w+|Fuzz\\w+)` \\|(.*)\\|$")

// TestTheTableHasTheNightlyTests: the table of docs/testing.md lists exactly the tests that call Only.
func TestTheTableHasTheNightlyTests(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/testing.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "| test | why it is nightly |\n|---|---|\n")
	if !ok {
		t.Fatal("docs/testing.md has no table of nightly tests")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := map[string]bool{}
	for line := range strings.Lines(table) {
		m := row.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil || strings.TrimSpace(m[3]) == "" {
			if strings.HasPrefix(line, "|") {
				t.Errorf("docs/testing.md: want | `folder.TestName` | reason |, not %q", line)
			}
			continue
		}
		name := m[1] + "." + m[2]
		if rows[name] {
			t.Errorf("docs/testing.md lists %s twice", name)
		}
		rows[name] = true
	}
	for name := range nightlyTests(t) {
		if !rows[name] {
			t.Errorf("%s calls nightly.Only; docs/testing.md does not say why", name)
		}
		delete(rows, name)
	}
	for name := range rows {
		t.Errorf("docs/testing.md lists %s, which does not call nightly.Only", name)
	}
}

// nightlyTests returns the tests that call Only, as folder.TestName.
func nightlyTests(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "nightly.Only(") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !callsOnly(f) {
				continue
			}
			if !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") {
				t.Errorf("%s: %s calls nightly.Only; call it in the tests, which the table names", path, f.Name.Name)
				continue
			}
			out[filepath.ToSlash(folder)+"."+f.Name.Name] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func callsOnly(f *ast.FuncDecl) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Only" {
				pkg, ok := sel.X.(*ast.Ident)
				found = found || ok && pkg.Name == "nightly"
			}
		}
		return true
	})
	return found
}
