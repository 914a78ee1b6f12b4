package mutation

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"hash/crc32"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Union is the sources of a module together with all mutants that only change function bodies. A program built from it
// behaves like the original until [Union.Patch] writes the name of a mutant into its file. Packages are therefore
// compiled and linked once, not once per mutant.
type Union struct {
	files map[string][]byte // changed and added files, by path relative to the module's root
	in    map[string]bool   // names of the mutants
}

// Has reports whether the mutant is in u. A mutant that changes a type, a variable, imports or a signature is not.
func (u *Union) Has(m Mutant) bool { return u.in[m.Name] }

// NewUnion unites the mutants, except those named in leave and mutants that do not apply. module is the module's path.
func NewUnion(root, module string, mutants []Mutant, leave map[string]bool) (*Union, error) {
	u := &Union{map[string][]byte{}, map[string]bool{}}
	src := NewSources(root)
	inserts := map[string][]edit{}
	for _, m := range mutants {
		if leave[m.Name] {
			continue
		}
		for name, some := range m.switches(src) {
			inserts[name] = append(inserts[name], some...)
			u.in[m.Name] = true
		}
	}
	for name, some := range inserts {
		s, err := src.file(name)
		if err != nil {
			return nil, err
		}
		if u.files[name], err = splice(s.text, some); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		u.files[path.Join(path.Dir(name), "zz_mutant.go")] = fmt.Appendf(nil,
			"package %s\n\nimport chosen__ \"%s/internal/mutants/chosen\"\n\nfunc %s(name string) bool { return chosen__.Name == name }\n",
			s.tree.Name.Name, module, switchFunc)
	}
	u.files["internal/mutants/chosen/chosen.go"] = fmt.Appendf(nil,
		"package chosen\n\nimport \"strings\"\n\nvar Slot = %q\n\nvar Name = strings.TrimRight(Slot[%d:], \".\")\n", emptySlot, len(slotMark))
	return u, nil
}

// switchFunc is the name of the function added to each mutated package.
const switchFunc = "mutant__"

// The slot is a string of fixed length in the program: the mark, then the name of a mutant padded with dots.
const slotMark = "boxgate mutant: "

var emptySlot = slotMark + strings.Repeat(".", 128)

// Patch returns the program with the mutant activated. found is false if the program contains no mutated package.
func (u *Union) Patch(program []byte, m Mutant) (patched []byte, found bool, err error) {
	at := bytes.Index(program, []byte(emptySlot))
	if at < 0 {
		return program, false, nil
	}
	if len(m.Name) > len(emptySlot)-len(slotMark) {
		return nil, true, fmt.Errorf("the name %s is too long", m.Name)
	}
	if bytes.Contains(program[at+1:], []byte(emptySlot)) {
		return nil, true, fmt.Errorf("the program has two slots for the mutant's name")
	}
	patched = bytes.Clone(program)
	copy(patched[at+len(slotMark):], m.Name)
	return patched, true, nil
}

// Write writes the changed files to dir and returns the replacements for the overlay file of `go build`.
func (u *Union) Write(root, dir string) (map[string]string, error) {
	replace := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(u.files)) {
		to := filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), path.Base(name)))
		if err := os.WriteFile(to, u.files[name], 0o600); err != nil {
			return nil, err
		}
		replace[filepath.Join(root, filepath.FromSlash(name))] = to
	}
	return replace, nil
}

// Packages returns the folders of the packages that u changes, sorted.
func (u *Union) Packages() []string {
	folders := map[string]bool{}
	for name := range u.files {
		folders[path.Dir(name)] = true
	}
	return slices.Sorted(maps.Keys(folders))
}

var mutantLine = regexp.MustCompile(`mutants/(\S+)\.txtar:\d+`)

// Blamed returns the names of the mutants in error messages of the compiler.
func (u *Union) Blamed(messages []byte) []string {
	var names []string
	for _, found := range mutantLine.FindAllSubmatch(messages, -1) {
		if u.in[string(found[1])] {
			names = append(names, string(found[1]))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// switches returns insertions that add the mutated body to each function that m changes, by file. It returns nil if m
// changes anything else.
func (m Mutant) switches(src *Sources) map[string][]edit {
	texts, err := m.Apply(src)
	if err != nil {
		return nil // running m reports the error
	}
	all := map[string][]edit{}
	for name, text := range texts {
		s, err := src.file(name)
		if err != nil || s.parse() != nil {
			return nil
		}
		some, ok := s.otherBodies(m.Name, text)
		if !ok {
			return nil
		}
		all[name] = some
	}
	return all
}

// otherBodies returns insertions for the functions whose bodies differ in text. ok is false if other parts differ.
func (src *source) otherBodies(mutant string, text []byte) (inserts []edit, ok bool) {
	other := &source{name: src.name, text: text}
	if other.parse() != nil || len(other.tree.Decls) != len(src.tree.Decls) {
		return nil, false
	}
	for i, d := range src.tree.Decls {
		if src.verbatim(d) == other.verbatim(other.tree.Decls[i]) {
			continue
		}
		f, isFunc := d.(*ast.FuncDecl)
		g, isToo := other.tree.Decls[i].(*ast.FuncDecl)
		if !isFunc || !isToo || f.Body == nil || g.Body == nil || src.signature(f) != other.signature(g) {
			return nil, false
		}
		inserts = append(inserts, src.otherBody(mutant, f, other.body(g, mutant)))
	}
	return inserts, len(inserts) > 0
}

func (src *source) otherBody(mutant string, f *ast.FuncDecl, body string) edit {
	if f.Type.Results == nil {
		body += "\nreturn"
	}
	at := src.offset(f.Body.Lbrace + 1)
	back := fmt.Sprintf("\n//line %s:%d\n", path.Base(src.name), src.file.Line(f.Body.Lbrace))
	return edit{at, at, fmt.Sprintf("if %s(%q) {\n//line mutants/%s.txtar:1\n%s\n}%s", switchFunc, mutant, mutant, body, back)}
}

func (src *source) between(from, to token.Pos) string {
	return string(src.text[src.offset(from):src.offset(to)])
}

func (src *source) verbatim(n ast.Node) string { return src.between(n.Pos(), n.End()) }

func (src *source) signature(f *ast.FuncDecl) string { return src.between(f.Pos(), f.Body.Lbrace) }

// body returns the text between the braces of a function. Its labels are renamed because a label must be unique in a
// function.
func (src *source) body(f *ast.FuncDecl, mutant string) string {
	from := src.offset(f.Body.Lbrace + 1)
	suffix := fmt.Sprintf("__%x", crc32.ChecksumIEEE([]byte(mutant)))
	var labels []edit
	ast.Inspect(f.Body, func(n ast.Node) bool {
		var label *ast.Ident
		switch n := n.(type) {
		case *ast.LabeledStmt:
			label = n.Label
		case *ast.BranchStmt:
			label = n.Label
		}
		if label != nil {
			at := src.offset(label.End()) - from
			labels = append(labels, edit{at, at, suffix})
		}
		return true
	})
	out, _ := splice([]byte(src.between(f.Body.Lbrace+1, f.Body.Rbrace)), labels) // insertions do not overlap
	return string(out)
}
