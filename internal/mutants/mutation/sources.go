package mutation

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Sources reads and parses files of a module, each once. It is not safe for concurrent use.
type Sources struct {
	root    string
	files   map[string]*source
	folders map[string][]string
}

// NewSources returns the sources of the module whose root is the folder root.
func NewSources(root string) *Sources {
	return &Sources{root: root, files: map[string]*source{}, folders: map[string][]string{}}
}

// source is a file, parsed on demand.
type source struct {
	name string // relative to the module's root, with slashes
	text []byte
	file *token.File
	tree *ast.File
}

func (s *Sources) file(name string) (*source, error) {
	if src := s.files[name]; src != nil {
		return src, nil
	}
	text, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	s.files[name] = &source{name: name, text: text}
	return s.files[name], nil
}

// list returns the Go files in a folder, without tests.
func (s *Sources) list(folder string) ([]string, error) {
	if names, ok := s.folders[folder]; ok {
		return names, nil
	}
	entries, err := os.ReadDir(filepath.Join(s.root, filepath.FromSlash(folder)))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if n := e.Name(); path.Ext(n) == ".go" && !strings.HasSuffix(n, "_test.go") {
			names = append(names, path.Join(folder, n))
		}
	}
	s.folders[folder] = names
	return names, nil
}

func (src *source) parse() error {
	if src.tree != nil {
		return nil
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, src.name, src.text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	src.tree, src.file = tree, set.File(tree.Pos())
	return nil
}

// offset returns the offset of a position in the text.
func (src *source) offset(p token.Pos) int { return src.file.Offset(p) }

// oneLine returns the text of a node on one line.
func (src *source) oneLine(n ast.Node) string {
	text := src.text[src.offset(n.Pos()):src.offset(n.End())]
	return strings.Join(strings.Fields(string(text)), " ")
}

// decl is a declaration and its file.
type decl struct {
	src  *source
	node ast.Node
	name string
}

// decls returns the declarations with the given name in files, or all declarations if name is empty.
func (s *Sources) decls(files []string, name string) ([]decl, error) {
	last := name[strings.LastIndexByte(name, '.')+1:]
	var found []decl
	for _, f := range files {
		src, err := s.file(f)
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(src.text, []byte(last)) {
			continue
		}
		if err := src.parse(); err != nil {
			return nil, err
		}
		for _, d := range src.decls() {
			if name == "" || d.name == name {
				found = append(found, d)
			}
		}
	}
	return found, nil
}

// decls returns the functions, methods, types, variables and constants of a file. Variables declared on one line are
// returned together, once under each name.
func (src *source) decls() []decl {
	var all []decl
	for _, d := range src.tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			all = append(all, decl{src, d, funcName(d)})
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					all = append(all, decl{src, spec, spec.Name.Name})
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						all = append(all, decl{src, spec, n.Name})
					}
				}
			}
		}
	}
	return all
}

// funcName returns Name, or T.Name for a method of T or *T.
func funcName(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) != 1 {
		return d.Name.Name
	}
	t := d.Recv.List[0].Type
	for {
		switch e := t.(type) {
		case *ast.StarExpr:
			t = e.X
		case *ast.ParenExpr:
			t = e.X
		case *ast.IndexExpr:
			t = e.X
		case *ast.IndexListExpr:
			t = e.X
		case *ast.Ident:
			return e.Name + "." + d.Name.Name
		default:
			return d.Name.Name
		}
	}
}

// declOf returns the only declaration that f names.
func (s *Sources) declOf(f File) (decl, error) {
	files := []string{f.Path}
	if path.Ext(f.Path) != ".go" {
		var err error
		if files, err = s.list(path.Clean(f.Path)); err != nil {
			return decl{}, err
		}
	}
	name := strings.NewReplacer("(", "", ")", "", "*", "").Replace(f.Decl)
	found, err := s.decls(files, name)
	switch {
	case err != nil:
		return decl{}, err
	case len(found) == 0:
		return decl{}, fmt.Errorf("%s has no declaration %s%s", f.Path, f.Decl, s.describeOtherMatches(f))
	case len(found) > 1:
		return decl{}, fmt.Errorf("%s is declared in %s and %s: name the file", f.Decl, found[0].src.name, found[1].src.name)
	}
	return found[0], nil
}

// describeOtherMatches lists the other declarations of the package that contain the first block of f.
func (s *Sources) describeOtherMatches(f File) string {
	files, err := s.list(f.folder())
	if err != nil {
		return ""
	}
	all, err := s.decls(files, "")
	patterns, bad := parsePatterns(f.Blocks[0].Old)
	if errors.Join(err, bad) != nil {
		return ""
	}
	var names []string
	for _, d := range all {
		if len(d.find(patterns)) > 0 {
			names = append(names, d.name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; the old text is in " + strings.Join(slices.Compact(names[:min(len(names), 3)]), ", ")
}
