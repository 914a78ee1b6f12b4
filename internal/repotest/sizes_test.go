package repotest

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"boxgate/internal/structure/measure"
)

// The limits for packages, without tests. A larger package has a row with the reason under "Sizes" in
// docs/architecture.md. A package that shrinks needs no row below nine tenths of both limits, so that a package of about
// the limit does not gain and lose its row with every change.
const (
	maxPackageFiles = 15
	maxPackageLines = 3000
)

var sizeRow = regexp.MustCompile("(?m)^\\| `([a-z0-9/_-]+)` \\| \\S.+ \\|$")

// TestSizesOfPackages compares the sizes of packages with the table of exceptions.
func TestSizesOfPackages(t *testing.T) {
	atRoot(t)
	_, section, found := strings.Cut(read(t, "docs/architecture.md"), "\n### Sizes\n")
	if !found {
		t.Fatal(`docs/architecture.md has no section "Sizes"`)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	reasons := map[string]bool{}
	for _, pkg := range firsts(sizeRow, section) {
		reasons[pkg] = true
	}
	packages, err := measure.Module(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range wrongSizes(packages, reasons) {
		t.Error(wrong)
	}
}

// wrongSizes returns the packages that are too large without a reason, and the rows that no package needs.
func wrongSizes(packages []measure.Package, reasons map[string]bool) (wrong []string) {
	unused := maps.Clone(reasons)
	for _, p := range packages {
		switch files, lines := 10*p.Files, 10*p.Lines; {
		case (p.Files > maxPackageFiles || p.Lines > maxPackageLines) && !reasons[p.Dir]:
			wrong = append(wrong, p.Dir+` is larger than a package may be without a reason in docs/architecture.md, "Sizes"`)
		case files > 9*maxPackageFiles || lines > 9*maxPackageLines:
			delete(unused, p.Dir)
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(unused)) {
		wrong = append(wrong, pkg+` does not need its row in docs/architecture.md, "Sizes"`)
	}
	return wrong
}

// TestWrongSizesAreFound: a missing reason and an unneeded row are found, and a package of about the limit may have a row
// or not.
func TestWrongSizesAreFound(t *testing.T) {
	for _, c := range []struct {
		files, lines  int
		without, with int // mistakes without a row and with one
	}{
		{files: 3, lines: 300, with: 1},
		{files: 13, lines: 2700, with: 1},
		{files: 14, lines: 300},
		{files: 3, lines: 2701},
		{files: 15, lines: 3000},
		{files: 16, lines: 300, without: 1},
		{files: 3, lines: 3001, without: 1},
	} {
		packages := []measure.Package{{Dir: "some/package", Files: c.files, Lines: c.lines}}
		for row, want := range map[bool]int{false: c.without, true: c.with} {
			reasons := map[string]bool{}
			if row {
				reasons["some/package"] = true
			}
			if wrong := wrongSizes(packages, reasons); len(wrong) != want {
				t.Errorf("%d files of %d lines, row %v: %q, want %d mistakes", c.files, c.lines, row, wrong, want)
			}
		}
	}
}
