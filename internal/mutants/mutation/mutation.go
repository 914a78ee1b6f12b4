// Package mutation reads the files of mutants/. Each removes one protection from the sources and names the tests that
// must then fail.
package mutation

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

// Mutant is one protection removed.
type Mutant struct {
	Name     string   // path of the file below mutants/, without .txtar
	Summary  string   // one sentence about the removed protection
	Promises []string // rows of docs/security.md that the protection serves
	Tests    []Test   // each must fail without the protection
	Files    []File
}

// Test names tests of one package.
type Test struct {
	Package string // as `go test` accepts it: ./proxy
	Run     string // as -run accepts it: ^TestName$
}

func (t Test) String() string { return t.Package + " " + t.Run }

// File is one source file, or one declaration of a package, and its replacements.
type File struct {
	Path   string // of the file, or of the package's folder if Decl is set; relative to the module's root, with slashes
	Decl   string // a function, method (T.Name), type, variable or constant; if empty, Blocks are lines of the file
	Blocks []Block
}

// Block replaces Old by New. In a File without Decl both are whole lines, and Old occurs exactly once in the file. With
// Decl, Old is Go code: an expression, statements, case clauses, fields, or elements of a list. It is matched against
// the syntax tree of the declaration, so spaces, line breaks and comments are ignored. It must occur exactly once
// there, unless Nth selects an occurrence, counted from 1.
type Block struct {
	Old, New string
	Nth      int
}

// Load parses every .txtar file below dir, sorted by name. On errors it returns the valid mutants together with all
// errors.
func Load(dir string) ([]Mutant, error) {
	var mutants []Mutant
	var errs []error
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".txtar" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		m, err := Parse(strings.TrimSuffix(filepath.ToSlash(name), ".txtar"), data)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			return nil
		}
		mutants = append(mutants, m)
		return nil
	})
	return mutants, errors.Join(append(errs, err)...)
}

// Parse parses one file. It is strict: unknown lines are errors.
func Parse(name string, data []byte) (Mutant, error) {
	archive := txtar.Parse(data)
	m := Mutant{Name: name}
	if err := m.parseHead(string(archive.Comment)); err != nil {
		return Mutant{}, err
	}
	for _, f := range archive.Files {
		path, decl, _ := strings.Cut(f.Name, " ")
		blocks, err := parseBlocks(f.Data)
		if err != nil {
			return Mutant{}, fmt.Errorf("%s: %w", f.Name, err)
		}
		if !filepath.IsLocal(path) {
			return Mutant{}, fmt.Errorf("%s: not a path inside the module", path)
		}
		file := File{Path: path, Decl: strings.TrimSpace(decl), Blocks: blocks}
		if err := file.check(); err != nil {
			return Mutant{}, fmt.Errorf("%s: %w", f.Name, err)
		}
		m.Files = append(m.Files, file)
	}
	return m, m.incomplete()
}

func (m *Mutant) parseHead(head string) error {
	summary, rest, _ := strings.Cut(strings.TrimSpace(head), "\n\n")
	m.Summary = strings.Join(strings.Fields(summary), " ")
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch {
		case line == "":
		case key == "promise" && value != "":
			m.Promises = append(m.Promises, value)
		case key == "test":
			test, err := parseTest(value)
			if err != nil {
				return err
			}
			m.Tests = append(m.Tests, test)
		default:
			return fmt.Errorf("unexpected line %q below the summary: want promise: TEXT or test: PACKAGE ^TestName$", line)
		}
	}
	return nil
}

func parseTest(s string) (Test, error) {
	fields := strings.Fields(s)
	if len(fields) != 2 {
		return Test{}, fmt.Errorf("test %q: want PACKAGE ^TestName$", s)
	}
	t := Test{Package: fields[0], Run: fields[1]}
	if t.Package != "." && !strings.HasPrefix(t.Package, "./") {
		return Test{}, fmt.Errorf("test %q: write the package as ./%s", s, t.Package)
	}
	if !strings.HasPrefix(t.Run, "^") || !strings.HasSuffix(t.Run, "$") {
		return Test{}, fmt.Errorf("test %q: anchor the name: ^TestName$", s)
	}
	if _, err := regexp.Compile(t.top()); err != nil {
		return Test{}, fmt.Errorf("test %q: %w", s, err)
	}
	return t, nil
}

// top returns the part of Run that chooses top-level tests.
func (t Test) top() string {
	top, _, _ := strings.Cut(t.Run, "/")
	return top
}

// Matches reports whether t names the top-level test name.
func (t Test) Matches(name string) bool {
	return regexp.MustCompile(t.top()).MatchString(name)
}

func (m *Mutant) incomplete() error {
	switch {
	case m.Summary == "":
		return errors.New("no summary: begin with one sentence about the removed protection")
	case len(m.Promises) == 0:
		return errors.New("no promise: line")
	case len(m.Tests) == 0:
		return errors.New("no test: line")
	case len(m.Files) == 0:
		return errors.New("no mutation: want -- PACKAGE DECLARATION -- or -- FILE --, and blocks")
	}
	return nil
}

const (
	beginOld = "<<<<\n"
	beginNew = "====\n"
	endBlock = ">>>>\n"
)

func parseBlocks(data []byte) ([]Block, error) {
	var blocks []Block
	var b Block
	state := endBlock
	for line := range strings.Lines(string(data)) {
		switch {
		case parseBlockStart(line, &b) && state == endBlock:
			state = beginOld
		case line == beginNew && state == beginOld:
			state = beginNew
		case line == endBlock && state == beginNew:
			if err := b.check(); err != nil {
				return nil, err
			}
			blocks, state = append(blocks, b), endBlock
		case parseBlockStart(line, &b) || line == beginNew || line == endBlock:
			return nil, fmt.Errorf("misplaced %s: want <<<<, old lines, ====, new lines, >>>>", strings.TrimSpace(line))
		case state == beginOld:
			b.Old += line
		case state == beginNew:
			b.New += line
		case strings.TrimSpace(line) != "":
			return nil, fmt.Errorf("%q stands outside a block", strings.TrimSpace(line))
		}
	}
	if state != endBlock {
		return nil, errors.New("the last block does not end with >>>>")
	}
	if blocks == nil {
		return nil, errors.New("no <<<< block")
	}
	return blocks, nil
}

// parseBlockStart reports whether line is the first of a block, and if so initialises b: <<<<, or <<<< 2 for the second
// occurrence.
func parseBlockStart(line string, b *Block) bool {
	if line == beginOld {
		*b = Block{}
		return true
	}
	number, ok := strings.CutPrefix(line, strings.TrimSuffix(beginOld, "\n")+" ")
	nth, err := strconv.Atoi(strings.TrimSpace(number))
	if !ok || err != nil || nth < 1 {
		return false
	}
	*b = Block{Nth: nth}
	return true
}

// check requires that blocks of lines are in whole files, and blocks of Go code in packages or Go files.
func (f File) check() error {
	for _, b := range f.Blocks {
		if f.Decl == "" {
			if b.Nth != 0 {
				return errors.New("only blocks of a declaration are counted: want -- PACKAGE DECLARATION --")
			}
			continue
		}
		if _, err := parsePatterns(b.Old); err != nil {
			return err
		}
	}
	return nil
}

func (b Block) check() error {
	if strings.TrimSpace(b.Old) == "" {
		return errors.New("a block has no old lines")
	}
	if b.Old == b.New {
		return errors.New("a block makes no change")
	}
	return nil
}

// Apply returns the mutated text of each file that m changes, by its path relative to the module's root.
func (m Mutant) Apply(s *Sources) (map[string][]byte, error) {
	edits := map[string][]edit{}
	for _, f := range m.Files {
		name, some, err := f.edits(s)
		if err != nil {
			return nil, err
		}
		edits[name] = append(edits[name], some...)
	}
	texts := map[string][]byte{}
	for name, some := range edits {
		src, err := s.file(name)
		if err != nil {
			return nil, err
		}
		if texts[name], err = splice(src.text, some); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return texts, nil
}

// Overlay writes the mutated files to dir and returns the replacements for the overlay file of `go build`. root is the
// module's root, absolute.
func (m Mutant) Overlay(root, dir string) (map[string]string, error) {
	texts, err := m.Apply(NewSources(root))
	if err != nil {
		return nil, err
	}
	replace := map[string]string{}
	for name, text := range texts {
		to := filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), path.Base(name)))
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return nil, err
		}
		replace[filepath.Join(root, filepath.FromSlash(name))] = to
	}
	return replace, nil
}

// Packages returns the folders of the packages that m mutates, relative to the module's root.
func (m Mutant) Packages() []string {
	var dirs []string
	for _, f := range m.Files {
		dirs = append(dirs, f.folder())
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

func (f File) folder() string {
	if f.Decl != "" && path.Ext(f.Path) != ".go" {
		return path.Clean(f.Path)
	}
	return path.Dir(f.Path)
}

// edit replaces the text between two offsets.
type edit struct {
	from, to int
	text     string
}

// edits returns the name of the file that f changes, and the edits.
func (f File) edits(s *Sources) (name string, edits []edit, err error) {
	if f.Decl != "" {
		return f.editsOfDecl(s)
	}
	src, err := s.file(f.Path)
	if err != nil {
		return "", nil, err
	}
	for _, b := range f.Blocks {
		e, err := b.inLines(src.text)
		if err != nil {
			return "", nil, fmt.Errorf("%s %w:\n%s", f.Path, err, b.Old)
		}
		edits = append(edits, e)
	}
	return f.Path, edits, nil
}

// inLines returns the edit for the old lines in src.
func (b Block) inLines(src []byte) (edit, error) {
	text, old := append([]byte("\n"), src...), []byte("\n"+b.Old)
	at := bytes.Index(text, old)
	if at < 0 {
		return edit{}, errors.New("no longer has these lines")
	}
	if bytes.Contains(text[at+1:], old) {
		return edit{}, errors.New("has these lines more than once; add the lines around them")
	}
	return edit{at, at + len(b.Old), b.New}, nil
}

// splice applies edits, whose offsets refer to text.
func splice(text []byte, edits []edit) ([]byte, error) {
	slices.SortStableFunc(edits, func(a, b edit) int { return cmp.Compare(a.from, b.from) })
	var out []byte
	done := 0
	for _, e := range edits {
		if e.from < done {
			return nil, fmt.Errorf("two blocks overlap at %q", text[e.from:min(done, e.to)])
		}
		out = append(append(out, text[done:e.from]...), e.text...)
		done = e.to
	}
	return append(out, text[done:]...), nil
}
