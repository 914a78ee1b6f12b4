// Package measure measures the lengths of a module's functions. It ignores test files and nested modules.
package measure

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Package is one package of the module with its measurements.
type Package struct {
	Dir       string // relative to the module's root, with slashes
	Files     int    // without tests, for any platform
	Lines     int    // of those files
	Functions []Function
}

// Function is one function or method with a body. Lines counts from the line of func to that of the closing brace.
type Function struct {
	Name  string // as file:line name
	Lines int
}

// Module measures every package of the module in root.
func Module(root string) ([]Package, error) {
	packages := map[string]*Package{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && isApart(path) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(rel))
		if packages[dir] == nil {
			packages[dir] = &Package{Dir: dir}
		}
		return packages[dir].add(path)
	})
	if err != nil {
		return nil, err
	}
	var out []Package
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		out = append(out, *packages[dir])
	}
	return out, nil
}

// isApart reports whether the go command ignores a directory or considers it another module.
func isApart(dir string) bool {
	name := filepath.Base(dir)
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "node_modules" {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// add measures one more file of the package.
func (p *Package) add(path string) error {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	p.Files++
	p.Lines += fset.File(f.FileStart).LineCount()
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			from, to := fset.Position(fn.Type.Func), fset.Position(fn.Body.Rbrace)
			name := fmt.Sprintf("%s/%s:%d %s", p.Dir, filepath.Base(path), from.Line, fn.Name.Name)
			p.Functions = append(p.Functions, Function{Name: name, Lines: to.Line - from.Line + 1})
		}
	}
	return nil
}

// Longest returns the n longest functions, the longest first.
func Longest(functions []Function, n int) []Function {
	sorted := slices.SortedStableFunc(slices.Values(functions), func(a, b Function) int { return cmp.Compare(b.Lines, a.Lines) })
	return sorted[:min(n, len(sorted))]
}

// Sizes are the quantiles of the lengths of functions, in lines.
type Sizes struct {
	Count, Median, P90, Max int
}

// SizesOf sums up functions.
func SizesOf(functions []Function) Sizes {
	var lines []int
	for _, f := range functions {
		lines = append(lines, f.Lines)
	}
	if len(lines) == 0 {
		return Sizes{}
	}
	slices.Sort(lines)
	at := func(q int) int { return lines[(len(lines)-1)*q/100] }
	return Sizes{Count: len(lines), Median: at(50), P90: at(90), Max: at(100)}
}
