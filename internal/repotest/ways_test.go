package repotest

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"
)

// maxHops is how many functions someone must read to follow one way through the gateway.
const maxHops = 6

// hop is one row of a table in docs/architecture.md: a function, the file it is in, and whether the one before it calls it.
type hop struct{ number, file, function string }

var (
	wayHeading = regexp.MustCompile(`^### (Hops of .+)$`)
	hopRow     = regexp.MustCompile("^\\| (\\d+) \\| `([^`]+\\.go)` `(\\w+)` \\|")
)

// TestWaysAreShortAndTrue holds the tables of docs/architecture.md to the code: each way has at most six hops, each hop is
// a function that exists in the file named, and each is called by the one before it.
func TestWaysAreShortAndTrue(t *testing.T) {
	atRoot(t)
	ways := waysOf(t)
	if len(ways) != 4 {
		t.Errorf("docs/architecture.md has the hops of %d ways, want those of a connection, a request, a DNS query and a policy update", len(ways))
	}
	files := map[string]*ast.File{}
	for _, s := range sources(t) {
		files[s.path] = s.file
	}
	for way, hops := range ways {
		if len(hops) < 2 || len(hops) > maxHops {
			t.Errorf("%s: %d hops; at most %d", way, len(hops), maxHops)
		}
		for i, h := range hops {
			bodies := functionsIn(files[h.file], h.function)
			if len(bodies) == 0 {
				t.Errorf("%s: hop %s: there is no function %s in %s", way, h.number, h.function, h.file)
			} else if i+1 < len(hops) && !anyUses(bodies, hops[i+1].function) {
				t.Errorf("%s: hop %s: %s in %s does not call %s", way, h.number, h.function, h.file, hops[i+1].function)
			}
		}
	}
}

// waysOf reads the tables.
func waysOf(t *testing.T) map[string][]hop {
	t.Helper()
	text, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	ways := map[string][]hop{}
	way := ""
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			way = ""
		}
		if m := wayHeading.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			way = m[1]
		}
		if m := hopRow.FindStringSubmatch(line); m != nil && way != "" {
			ways[way] = append(ways[way], hop{m[1], m[2], m[3]})
		}
	}
	return ways
}

// functionsIn returns the functions and methods of a file that have a name.
func functionsIn(f *ast.File, name string) (found []*ast.FuncDecl) {
	if f == nil {
		return nil
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == name && fn.Body != nil {
			found = append(found, fn)
		}
	}
	return found
}

// anyUses reports whether one of the functions calls what has the name, through an interface perhaps, or hands it on to be
// called.
func anyUses(functions []*ast.FuncDecl, name string) bool {
	used := false
	for _, fn := range functions {
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				used = used || n.Sel.Name == name
			case *ast.CallExpr:
				if id, ok := n.Fun.(*ast.Ident); ok {
					used = used || id.Name == name
				}
			}
			return !used
		})
	}
	return used
}

var namedIn = regexp.MustCompile("`([\\w/]+\\.go)`,?\\s+`(\\w+)`")

// TestDocumentsNameExistingFunctions holds that where a document names a file and then something in it, the file declares that.
func TestDocumentsNameExistingFunctions(t *testing.T) {
	atRoot(t)
	files := map[string]*ast.File{}
	for _, s := range sources(t) {
		files[s.path] = s.file
	}
	for _, doc := range []string{"README.md", "docs/architecture.md", "docs/conformance.md", "docs/running.md", "docs/security.md"} {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range namedIn.FindAllStringSubmatch(string(text), -1) {
			if f := files[m[1]]; f != nil && !declares(f, m[2]) {
				t.Errorf("%s names %s in %s, which does not declare it", doc, m[2], m[1])
			}
		}
	}
}

// declares reports whether a file declares a function, a method, a type, a variable, a constant or a field of a name.
func declares(f *ast.File, name string) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			found = found || n.Name.Name == name
		case *ast.TypeSpec:
			found = found || n.Name.Name == name
		case *ast.ValueSpec:
			for _, id := range n.Names {
				found = found || id.Name == name
			}
		case *ast.Field:
			for _, id := range n.Names {
				found = found || id.Name == name
			}
		}
		return !found
	})
	return found
}
