package mutation

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
)

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
