package proxy_test

import (
	"strings"
	"testing"
)

// table is a table of a Markdown page: the column headings except the first, and the cells by the first cell of their row.
type table struct {
	head  []string
	cells map[string][]string
}

// section returns the text below a heading.
func section(page, heading string) string {
	_, below, _ := strings.Cut(page, heading+"\n")
	below, _, _ = strings.Cut(below, "\n## ")
	return below
}

// tableOf parses the table whose first line begins with begin, and drops backquotes. A row may list several first cells,
// separated by " · ".
func tableOf(t *testing.T, page, begin string) table {
	t.Helper()
	_, rest, found := strings.Cut(page, "\n"+begin)
	if !found {
		t.Fatalf("no table %q", begin)
	}
	rest, _, _ = strings.Cut(rest, "\n\n")
	out := table{cells: map[string][]string{}}
	for i, line := range strings.Split(strings.TrimSpace(begin+rest), "\n") {
		cells := strings.Split(strings.Trim(strings.ReplaceAll(line, "`", ""), "| "), "|")
		for j := range cells {
			cells[j] = strings.TrimSpace(cells[j])
		}
		switch i {
		case 0:
			out.head = cells[1:]
		case 1:
		default:
			if len(cells) != len(out.head)+1 {
				t.Fatalf("the row %q has %d cells", line, len(cells))
			}
			for key := range strings.SplitSeq(cells[0], " · ") {
				out.cells[key] = cells[1:]
			}
		}
	}
	return out
}
