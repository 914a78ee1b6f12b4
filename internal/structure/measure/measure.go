// Package measure measures the structure of a module: which files of a package refer to each other in a circle, and how
// long its functions are. Test files do not count.
//
// File A refers to file B of the same package if an identifier in A resolves to something declared in B: a type,
// function, variable or constant, a method, or a field. So a method call refers to the file that declares the method,
// even if the type is declared elsewhere; a method refers by its receiver to the file of the type; and a value used
// only through an interface refers to the file of the interface, not to those that implement it. Names resolve with the
// types of all imports, read from the compiler's export data, hence exactly as the compiler resolves them.
//
// A circle is a strongly connected component of more than one file in that graph: to understand one of its files, one
// has to read them all.
package measure

import (
	"context"
	"slices"
	"strings"
)

// Package is one package of the module with its measurements.
type Package struct {
	Dir       string // relative to the module's root, with slashes
	Files     []File
	Circles   []Circle // largest first
	Functions []Function
}

// File is one file that is not a test.
type File struct {
	Name  string
	Lines int
	Uses  []Use // of other files of the package, by file and name
}

// Use is one identifier that a file uses and another file of the package declares.
type Use struct {
	File, Name string
}

// Circle is a set of files of which each refers, directly or through others, to every other.
type Circle struct {
	Files []string
	Lines int
}

// Function is one function or method with a body. Lines counts from the line of func to that of the closing brace.
type Function struct {
	Name  string // as file:line name
	Lines int
}

// Module measures every package of the module in dir. It runs the go command, which compiles what has changed.
func Module(ctx context.Context, dir string) ([]Package, error) {
	listed, err := list(ctx, dir)
	if err != nil {
		return nil, err
	}
	l := newLoader(listed)
	var out []Package
	for _, p := range listed {
		if p.Module == nil || !p.Module.Main || len(p.GoFiles) == 0 {
			continue
		}
		files, info, err := l.check(p)
		if err != nil {
			return nil, err
		}
		out = append(out, l.measure(p, files, info))
	}
	slices.SortFunc(out, func(a, b Package) int { return strings.Compare(a.Dir, b.Dir) })
	return out, nil
}

// Lines is the length of the package's files together.
func (p Package) Lines() int {
	n := 0
	for _, f := range p.Files {
		n += f.Lines
	}
	return n
}

// Largest returns the circle with the most files, which has none if no files of the package refer to each other in one.
func (p Package) Largest() Circle {
	if len(p.Circles) == 0 {
		return Circle{}
	}
	return p.Circles[0]
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
