package measure

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// listed is what `go list` says of a package.
type listed struct {
	Dir, ImportPath, Export string
	GoFiles                 []string
	ImportMap               map[string]string
	Module                  *struct {
		Dir  string
		Main bool
	}
}

// list returns the packages of the module in dir and all they import, each with the path of its export data.
func list(ctx context.Context, dir string) ([]listed, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles,ImportMap,Module", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as the gateway is built
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	var out []listed
	for d := json.NewDecoder(bytes.NewReader(stdout)); ; {
		var p listed
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		out = append(out, p)
	}
}

type loader struct {
	fset     *token.FileSet
	importer types.Importer
}

func newLoader(packages []listed) *loader {
	export := map[string]string{}
	for _, p := range packages {
		export[p.ImportPath] = p.Export
	}
	fset := token.NewFileSet()
	return &loader{fset: fset, importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if export[path] == "" {
			return nil, fmt.Errorf("no export data for %s", path)
		}
		return os.Open(export[path])
	})}
}

// mapped resolves import paths through the vendored names of the standard library.
type mapped struct {
	types.Importer
	names map[string]string
}

func (m mapped) Import(path string) (*types.Package, error) {
	return m.Importer.Import(cmp.Or(m.names[path], path))
}

// check parses and type-checks the files of p.
func (l *loader) check(p listed) ([]*ast.File, *types.Info, error) {
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(l.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: mapped{l.importer, p.ImportMap}}
	if _, err := config.Check(p.ImportPath, l.fset, files, info); err != nil {
		return nil, nil, err
	}
	return files, info, nil
}

// measure sums up the checked files of p.
func (l *loader) measure(p listed, files []*ast.File, info *types.Info) Package {
	dir, err := filepath.Rel(p.Module.Dir, p.Dir)
	if err != nil {
		dir = p.ImportPath
	}
	out := Package{Dir: filepath.ToSlash(dir)}
	for _, f := range files {
		at := l.fset.File(f.FileStart)
		out.Files = append(out.Files, File{Name: filepath.Base(at.Name()), Lines: at.LineCount(), Uses: l.uses(f, info)})
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				out.Functions = append(out.Functions, l.function(out.Dir, fn))
			}
		}
	}
	out.Circles = circles(out.Files)
	return out
}

// uses lists what f uses of the other files of its package.
func (l *loader) uses(f *ast.File, info *types.Info) []Use {
	self := l.fset.File(f.FileStart)
	dir := filepath.Dir(self.Name())
	seen := map[Use]bool{}
	var out []Use
	ast.Inspect(f, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		object := info.Uses[id]
		if object == nil || !object.Pos().IsValid() {
			return true
		}
		declared := l.fset.File(object.Pos())
		if declared == nil || declared == self || filepath.Dir(declared.Name()) != dir {
			return true
		}
		if u := (Use{File: filepath.Base(declared.Name()), Name: id.Name}); !seen[u] {
			seen[u] = true
			out = append(out, u)
		}
		return true
	})
	slices.SortFunc(out, func(a, b Use) int { return cmp.Or(strings.Compare(a.File, b.File), strings.Compare(a.Name, b.Name)) })
	return out
}

func (l *loader) function(dir string, f *ast.FuncDecl) Function {
	from, to := l.fset.Position(f.Type.Func), l.fset.Position(f.Body.Rbrace)
	where := fmt.Sprintf("%s/%s:%d", dir, filepath.Base(from.Filename), from.Line)
	return Function{Name: where + " " + f.Name.Name, Lines: to.Line - from.Line + 1}
}
