package measure

import (
	"cmp"
	"slices"
	"strings"
)

// circles returns the strongly connected components of more than one file, by Tarjan's algorithm.
func circles(files []File) []Circle {
	t := tarjan{files: map[string]File{}, index: map[string]int{}, low: map[string]int{}, open: map[string]bool{}}
	for _, f := range files {
		t.files[f.Name] = f
	}
	for _, f := range files {
		if t.index[f.Name] == 0 {
			t.visit(f.Name)
		}
	}
	slices.SortFunc(t.circles, func(a, b Circle) int {
		return cmp.Or(len(b.Files)-len(a.Files), b.Lines-a.Lines, strings.Compare(a.Files[0], b.Files[0]))
	})
	return t.circles
}

type tarjan struct {
	files   map[string]File
	index   map[string]int // order of the first visit, from 1
	low     map[string]int // lowest index known to be reachable within the component
	stack   []string
	open    map[string]bool // on the stack
	circles []Circle
}

func (t *tarjan) visit(name string) {
	t.index[name] = len(t.index) + 1
	t.low[name] = t.index[name]
	t.stack, t.open[name] = append(t.stack, name), true
	for _, u := range t.files[name].Uses {
		switch {
		case t.index[u.File] == 0:
			t.visit(u.File)
			t.low[name] = min(t.low[name], t.low[u.File])
		case t.open[u.File]:
			t.low[name] = min(t.low[name], t.index[u.File])
		}
	}
	if t.low[name] == t.index[name] {
		t.close(name)
	}
}

// close takes the component whose first visited file is name off the stack, and keeps it if it is a circle.
func (t *tarjan) close(name string) {
	from := slices.Index(t.stack, name)
	component := slices.Clone(t.stack[from:])
	t.stack = t.stack[:from]
	c := Circle{Files: component}
	for _, f := range component {
		t.open[f] = false
		c.Lines += t.files[f].Lines
	}
	if len(component) > 1 {
		slices.Sort(c.Files)
		t.circles = append(t.circles, c)
	}
}
