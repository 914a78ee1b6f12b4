// Package mutation reads the files of mutants/: each removes one protection from the sources and names the tests that
// must then fail.
package mutation

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

// Mutant is one protection removed.
type Mutant struct {
	Name     string   // base name of the file, without .txtar
	Summary  string   // one sentence: what is removed
	Promises []string // rows of docs/security.md that the protection serves
	Tests    []Test   // each must fail without the protection
	Files    []File
}

// Test names tests of one package.
type Test struct {
	Package string // as `go test` takes it: ./proxy
	Run     string // as -run takes it: ^TestName$
}

func (t Test) String() string { return t.Package + " " + t.Run }

// File is one source file and what to replace in it.
type File struct {
	Path   string // relative to the module's root, with slashes
	Blocks []Block
}

// Block replaces whole lines. Old occurs exactly once in the file.
type Block struct{ Old, New string }

// Load parses every .txtar file in dir, sorted by name. On errors it returns the mutants that could be read, with all
// errors.
func Load(dir string) ([]Mutant, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil {
		return nil, err
	}
	var mutants []Mutant
	var errs []error
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		m, err := Parse(strings.TrimSuffix(filepath.Base(path), ".txtar"), data)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		}
		mutants = append(mutants, m)
	}
	return mutants, errors.Join(errs...)
}

// Parse parses one file. It is strict: unknown lines are errors.
func Parse(name string, data []byte) (Mutant, error) {
	archive := txtar.Parse(data)
	m := Mutant{Name: name}
	if err := m.parseHead(string(archive.Comment)); err != nil {
		return Mutant{}, err
	}
	for _, f := range archive.Files {
		blocks, err := parseBlocks(f.Data)
		if err != nil {
			return Mutant{}, fmt.Errorf("%s: %w", f.Name, err)
		}
		if !filepath.IsLocal(f.Name) {
			return Mutant{}, fmt.Errorf("%s: not a path inside the module", f.Name)
		}
		m.Files = append(m.Files, File{Path: f.Name, Blocks: blocks})
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

// Matches reports whether the top-level test name is one that t names.
func (t Test) Matches(name string) bool {
	return regexp.MustCompile(t.top()).MatchString(name)
}

func (m *Mutant) incomplete() error {
	switch {
	case m.Summary == "":
		return errors.New("no summary: begin with one sentence that says what is taken away")
	case len(m.Promises) == 0:
		return errors.New("no promise: line")
	case len(m.Tests) == 0:
		return errors.New("no test: line")
	case len(m.Files) == 0:
		return errors.New("no file to mutate: want -- PATH -- and blocks")
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
		case line == beginOld && state == endBlock:
			b, state = Block{}, beginOld
		case line == beginNew && state == beginOld:
			state = beginNew
		case line == endBlock && state == beginNew:
			if err := b.check(); err != nil {
				return nil, err
			}
			blocks, state = append(blocks, b), endBlock
		case line == beginOld || line == beginNew || line == endBlock:
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

func (b Block) check() error {
	if strings.TrimSpace(b.Old) == "" {
		return errors.New("a block has no old lines")
	}
	if b.Old == b.New {
		return errors.New("a block changes nothing")
	}
	return nil
}

// Apply returns the mutated text of a file whose text is src.
func (f File) Apply(src []byte) ([]byte, error) {
	text := append([]byte("\n"), src...)
	for _, b := range f.Blocks {
		old := []byte("\n" + b.Old)
		at := bytes.Index(text, old)
		if at < 0 {
			return nil, fmt.Errorf("%s no longer has these lines:\n%s", f.Path, b.Old)
		}
		if bytes.Contains(text[at+1:], old) {
			return nil, fmt.Errorf("%s has these lines more than once; add the lines around them:\n%s", f.Path, b.Old)
		}
		text = bytes.Join([][]byte{text[:at+1], []byte(b.New), text[at+len(old):]}, nil)
	}
	return text[1:], nil
}

// Overlay writes the mutated files below dir and returns what they replace, as the overlay file of `go build` wants it.
// root is the module's root, absolute.
func (m Mutant) Overlay(root, dir string) (map[string]string, error) {
	replace := map[string]string{}
	for i, f := range m.Files {
		path := filepath.Join(root, filepath.FromSlash(f.Path))
		src, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		mutated, err := f.Apply(src)
		if err != nil {
			return nil, err
		}
		to := filepath.Join(dir, fmt.Sprintf("%d-%s", i, filepath.Base(path)))
		if err := os.WriteFile(to, mutated, 0o600); err != nil {
			return nil, err
		}
		replace[path] = to
	}
	return replace, nil
}
