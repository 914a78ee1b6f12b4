package repotest

import (
	"errors"
	"fmt"
	"go/ast"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// maxHops is the maximum number of functions to read for one way through the gateway.
const maxHops = 6

// maxWays is the number of tables: for a connection, a request, a visit, a DNS query answered immediately, any other
// query, and a policy update.
const maxWays = 6

// function is a function and its file, as documents name it.
type function struct{ file, name string }

func (f function) String() string { return f.name + " in " + f.file }

// hop is one row of a table in docs/architecture.md: a function called by the previous row's, and the functions that it
// calls itself according to the row.
type hop struct {
	function
	calls []function
}

var (
	wayHeading  = regexp.MustCompile(`^### (Hops of .+)$`)
	hopRow      = regexp.MustCompile("^\\| (\\d+) \\| `([^`]+\\.go)` `(\\w+)` \\| ([^|]+) \\|$")
	hopTableTop = regexp.MustCompile(`^\|( hop \| function \| work |(---\|)+)\|?$`)
	hopCalls    = regexp.MustCompile("`([^`]+\\.go)` `(\\w+)`")
)

// TestWaysAreShortAndTrue compares the tables of docs/architecture.md with the code: each way has at most six hops,
// each hop is an existing function in the named file, each is called by the previous one, and each calls the functions
// named in its row.
func TestWaysAreShortAndTrue(t *testing.T) {
	atRoot(t)
	ways, err := waysOf(read(t, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	if len(ways) != maxWays {
		t.Errorf("docs/architecture.md has the hops of %d ways, want %d", len(ways), maxWays)
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
			calls := h.calls
			if i+1 < len(hops) {
				calls = append(calls, hops[i+1].function)
			}
			for _, wrong := range wrongOf(files, h.function, calls) {
				t.Errorf("%s: hop %d: %s", way, i+1, wrong)
			}
		}
	}
}

// wrongOf returns the false claims about a function that calls others.
func wrongOf(files map[string]*ast.File, f function, calls []function) (wrong []string) {
	bodies := functionsIn(files[f.file], f.name)
	if len(bodies) == 0 {
		return []string{fmt.Sprintf("there is no function %s", f)}
	}
	for _, called := range calls {
		switch {
		case len(functionsIn(files[called.file], called.name)) == 0:
			wrong = append(wrong, fmt.Sprintf("there is no function %s", called))
		case !anyUses(bodies, called.name):
			wrong = append(wrong, fmt.Sprintf("%s does not call %s", f, called))
		}
	}
	return wrong
}

// waysOf parses the tables of a document. A row that cannot be parsed is an error, because it would not be checked.
func waysOf(text string) (map[string][]hop, error) {
	ways := map[string][]hop{}
	way := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			way = ""
		}
		if m := wayHeading.FindStringSubmatch(line); m != nil {
			way = m[1]
		}
		if way == "" || !strings.HasPrefix(line, "|") || hopTableTop.MatchString(line) {
			continue
		}
		h, err := hopOf(line, len(ways[way])+1)
		if err != nil {
			return nil, fmt.Errorf("%s: %w:\n%s", way, err, line)
		}
		ways[way] = append(ways[way], h)
	}
	return ways, nil
}

// hopOf parses the row with the given number.
func hopOf(row string, number int) (hop, error) {
	m := hopRow.FindStringSubmatch(row)
	if m == nil {
		return hop{}, errors.New("a row is a number, one function as `file.go` `name`, and what it does")
	}
	if m[1] != strconv.Itoa(number) {
		return hop{}, fmt.Errorf("this is hop %d", number)
	}
	h := hop{function: function{m[2], m[3]}}
	for _, called := range hopCalls.FindAllStringSubmatch(m[4], -1) {
		h.calls = append(h.calls, function{called[1], called[2]})
	}
	if strings.Contains(hopCalls.ReplaceAllString(m[4], ""), "`") {
		return hop{}, errors.New("functions that a hop calls are named as `file.go` `name`, each with its file")
	}
	return h, nil
}

// TestRowsOfWaysAreRead: every row is parsed.
func TestRowsOfWaysAreRead(t *testing.T) {
	const head = "### Hops of a test\n\n| hop | function | work |\n|---|---|---|\n"
	ways, err := waysOf(head + "| 1 | `a/b.go` `c` | does (`d.go` `e`) |\n| 2 | `d.go` `e` | all |\n\n## More\n\n| 3 |\n")
	want := map[string][]hop{"Hops of a test": {{function{"a/b.go", "c"}, []function{{"d.go", "e"}}}, {function: function{"d.go", "e"}}}}
	if err != nil || !reflect.DeepEqual(ways, want) {
		t.Errorf("read %+v, %v", ways, err)
	}
	for _, row := range []string{
		"| 1 | `b.go` `c`, `d` | two functions |",
		"| 1 | `b.go` `c` `d.go` `e` | two functions |",
		"| 1 | `b.go` `c` | calls `d` |",
		"| 1 | `b.go` `c` | calls (`d.go` `e`, `f`) |",
		"| 1 | `b.go` `c` | a cell | more |",
		"| 1 | `b.go` | no function |",
		"| 2 | `b.go` `c` | not the first |",
	} {
		if ways, err := waysOf(head + row + "\n"); err == nil {
			t.Errorf("%s: read as %+v", row, ways)
		}
	}
}

// functionsIn returns the functions and methods of a file with the given name.
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

// anyUses reports whether one of the functions calls a function with this name, perhaps through an interface, or passes
// it on as a value.
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

// TestDocumentsNameExistingFunctions: if a document names a file and then an identifier in it, the file declares it.
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

// declares reports whether a file declares a function, method, type, variable, constant or field with a name.
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
