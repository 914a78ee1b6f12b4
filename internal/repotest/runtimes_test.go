package repotest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"boxgate/launcher/oci"
)

// namesRuntimes are the files outside of launcher/oci that may name an OCI runtime, with the reason.
var namesRuntimes = map[string]string{
	"bench/field/boxes.go": "measures exec by runc alone, past the gateway",
}

// TestRuntimesAreToldApartInOnePlace: OCI runtimes are distinguished by the fields of an oci.Runtime. Outside of
// launcher/oci, no source contains a runtime's name as a string, and no test compares with one.
func TestRuntimesAreToldApartInOnePlace(t *testing.T) {
	atRoot(t)
	named := map[string]bool{}
	for _, s := range sources(t) {
		if s.pkg == "launcher/oci" {
			continue
		}
		found := runtimeNames(s.file, strings.HasSuffix(s.path, "_test.go"))
		named[s.path] = len(found) > 0
		if len(found) > 0 && namesRuntimes[s.path] == "" {
			t.Errorf("%s names an OCI runtime (%s): ask for a field of oci.Runtime, or give it one (launcher/oci/runtime.go)", s.path, strings.Join(found, ", "))
		}
	}
	for path := range namesRuntimes {
		if !named[path] {
			t.Errorf("%s names no OCI runtime: remove it from the list", path)
		}
	}
}

// runtimeNames returns the strings in a file that are names of runtimes, or begin with one and a colon like the names
// of their processes. With comparedOnly, only operands of comparisons, switch cases and arguments of string functions
// count.
func runtimeNames(file *ast.File, comparedOnly bool) []string {
	var found []string
	collect := func(within ...ast.Expr) {
		for _, e := range within {
			ast.Inspect(e, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && isRuntimeName(lit) {
					found = append(found, lit.Value)
				}
				return true
			})
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if !comparedOnly && isRuntimeName(n) {
				found = append(found, n.Value)
			}
		case *ast.BinaryExpr:
			if comparedOnly && (n.Op == token.EQL || n.Op == token.NEQ) {
				collect(literals(n.X, n.Y)...)
			}
		case *ast.CaseClause:
			if comparedOnly {
				collect(literals(n.List...)...)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && comparedOnly {
				if pkg, ok := f.X.(*ast.Ident); ok && pkg.Name == "strings" {
					collect(literals(n.Args...)...)
				}
			}
		}
		return true
	})
	return found
}

// literals returns the expressions that are literals.
func literals(all ...ast.Expr) []ast.Expr {
	return slices.DeleteFunc(slices.Clone(all), func(e ast.Expr) bool { _, ok := e.(*ast.BasicLit); return !ok })
}

func isRuntimeName(lit *ast.BasicLit) bool {
	value, err := strconv.Unquote(lit.Value)
	if err != nil || lit.Kind != token.STRING {
		return false
	}
	name, _, _ := strings.Cut(value, ":")
	return slices.Contains(oci.Names(), name)
}

// TestRuntimesAreDocumented: docs/boxes.md describes each runtime and its differences.
func TestRuntimesAreDocumented(t *testing.T) {
	atRoot(t)
	page := read(t, "docs/boxes.md")
	for _, name := range oci.Names() {
		if !strings.Contains(page, "\n| `"+name+"`") {
			t.Errorf("docs/boxes.md has no row of %s", name)
		}
	}
}

func TestRuntimeNamesAreFound(t *testing.T) {
	t.Parallel()
	for source, want := range map[string][2]int{ // in a source, in a test
		`var _ = x == "runsc"`:                             {1, 1},
		`func f() { switch x { case "runc", "crun": } }`:   {2, 2},
		`var _ = strings.HasPrefix(comm, "runc:[")`:        {1, 1},
		`const gvisor = "runsc"`:                           {1, 0},
		`var _ = exec.Command("runc", "exec")`:             {1, 0},
		`var _ = "runc exec takes longer" == x`:            {0, 0},
		`var _ = x == f("runc")`:                           {1, 0},
		`var _ = map[string]int{"crun": 1}`:                {1, 0},
		"var _ = `runsc` != x":                             {1, 1},
		`func f() { if x == y && "crun" == x { return } }`: {1, 1},
		`import "runtime"; func f() { runtime.Gosched() }`: {0, 0},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+source, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i, comparedOnly := range []bool{false, true} {
			if found := runtimeNames(file, comparedOnly); len(found) != want[i] {
				t.Errorf("%s, compared only: %t: %v", source, comparedOnly, found)
			}
		}
	}
}
