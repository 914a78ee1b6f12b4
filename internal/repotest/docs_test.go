package repotest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// documents returns the pages in docs and its folders.
func documents() ([]string, error) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		return nil, err
	}
	below, err := filepath.Glob("docs/*/*.md")
	return append(pages, below...), err
}

// TestDocumentsLinkToWhatExists: every link within the repository leads to an existing file and heading.
func TestDocumentsLinkToWhatExists(t *testing.T) {
	atRoot(t)
	docs, err := documents()
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range append(docs, "README.md", "CONTRIBUTING.md") {
		for _, found := range link.FindAllStringSubmatch(read(t, doc), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(found[1], "#")
			target := doc
			if path != "" {
				target = filepath.Join(filepath.Dir(doc), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", doc, found[1])
			} else if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s links to %s, which has no such heading", doc, found[1])
			}
		}
	}
}

// TestDocumentsNameExistingTests: each test named in a document exists.
func TestDocumentsNameExistingTests(t *testing.T) {
	atRoot(t)
	exists := map[string]bool{}
	for _, names := range testsByPackage(t) {
		for _, name := range names {
			exists[name] = true
		}
	}
	for _, doc := range []string{"docs/security.md", "docs/conformance.md"} {
		for i, quoted := range strings.Split(read(t, doc), "`") {
			if i%2 == 1 && strings.HasPrefix(quoted, "Test") && !exists[quoted] {
				t.Errorf("%s names %s, which does not exist", doc, quoted)
			}
		}
	}
}

// TestBenchmarkCasesHaveTests: each line of the table on agent-egress-bench names a test, or marks its cases as not
// applicable, and the lines add up to the number of cases in the text.
func TestBenchmarkCasesHaveTests(t *testing.T) {
	atRoot(t)
	_, section, ok := strings.Cut(read(t, "docs/conformance.md"), "\n## agent-egress-bench\n")
	if !ok {
		t.Fatal("docs/conformance.md has no section on agent-egress-bench")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	count := 0
	for line := range strings.Lines(section) {
		columns := strings.Split(strings.Trim(line, "|\n "), " | ")
		n, err := strconv.Atoi(columns[min(1, len(columns)-1)])
		if err != nil {
			continue // not a row of the table, or its head
		}
		count += n
		if tested := strings.Contains(line, "`Test"); tested == strings.HasPrefix(columns[2], "not applicable") {
			t.Errorf("%s: a test: %v", line, tested)
		}
	}
	if total := fmt.Sprintf(" has %d cases ", count); count == 0 || !strings.Contains(section, total) {
		t.Errorf("the lines have %d cases, the text does not", count)
	}
}

// TestEveryPageIsFoundFromTheIndex holds that each page is at most two links away from docs/README.md, to which README.md leads.
func TestEveryPageIsFoundFromTheIndex(t *testing.T) {
	atRoot(t)
	const index = "docs/README.md"
	if !slices.Contains(linked(t, "README.md"), index) {
		t.Errorf("README.md does not link to %s", index)
	}
	near := map[string]bool{index: true}
	for range 2 {
		for _, page := range slices.Collect(maps.Keys(near)) {
			for _, next := range linked(t, page) {
				near[next] = true
			}
		}
	}
	pages, err := documents()
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "CONTRIBUTING.md") {
		if !near[page] {
			t.Errorf("%s is more than two links away from %s", page, index)
		}
	}
}

// TestDocumentsRepeatNothing: a merge of two branches that added the same row, heading or line leaves it there twice, and one of
// branches that worded a line differently leaves both versions.
func TestDocumentsRepeatNothing(t *testing.T) {
	atRoot(t)
	docs, err := documents()
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range append(docs, "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md") {
		if doc == "docs/benchmarks.md" {
			continue // written by a program; its rows begin with the same scenario
		}
		for _, fault := range repetitions(read(t, doc)) {
			t.Errorf("%s: %s", doc, fault)
		}
	}
}

// repetitions returns the rows of one table with the same first cell, the headings and the long lines that a document has
// twice outside of its code, versions of a line near each other, and marks of conflicts.
func repetitions(text string) (faults []string) {
	const long = 40 // a shorter line can be the same by chance
	code := false
	rows, lines := map[string]int{}, map[string]int{}
	var near []string
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		}
		if code {
			continue
		}
		known, key := lines, line
		switch {
		case strings.HasPrefix(line, "|"):
			known, key = rows, strings.TrimSpace(strings.Split(line, "|")[1])
			if strings.Trim(key, "-: ") == "" {
				continue // the line below the head, or a cell that continues the one above
			}
		case strings.HasPrefix(line, "<<<<<<<"), strings.HasPrefix(line, ">>>>>>>"):
			faults = append(faults, fmt.Sprintf("line %d is the mark of a conflict", i+1))
			continue
		default:
			clear(rows)
			if strings.HasPrefix(line, "#") {
				break
			}
			if near = append(near, line); len(near) > 5 {
				near = near[1:]
			}
			if len(line) < long {
				continue
			}
			if slices.ContainsFunc(near[:len(near)-1], func(other string) bool { return other != line && isVersion(other, line) }) {
				faults = append(faults, fmt.Sprintf("line %d is a version of a line above it: %s", i+1, line))
			}
		}
		if known[key] > 0 {
			faults = append(faults, fmt.Sprintf("line %d repeats line %d: %s", i+1, known[key], key))
		}
		known[key] = i + 1
	}
	if code {
		faults = append(faults, "the last block of code does not end")
	}
	return faults
}

// isVersion reports whether two lines share more than two thirds of their words.
func isVersion(a, b string) bool {
	words, n, shared := map[string]bool{}, 0, 0
	for _, word := range strings.Fields(a) {
		words[word] = true
	}
	for _, word := range strings.Fields(b) {
		n++
		if words[word] {
			shared++
		}
	}
	return 3*shared > 2*max(len(words), n)
}

// TestRepetitionsAreFound is the control of the test above.
func TestRepetitionsAreFound(t *testing.T) {
	t.Parallel()
	const sentence = "a sentence that is longer than forty characters"
	for text, want := range map[string]int{
		"| name | use |\n|---|---|\n| `a` | one |\n| `b` | one |\n\n| name |\n|---|\n| `a` |\n": 0,
		"| name | use |\n|---|---|\n| `a` | one |\n| `b` | one |\n| `a` | two |\n":              1,
		"| |\n|---|\n| | x |\n| | x |\n":                              0,
		"# One\n\ntext\n\n# Two\n\ntext\n":                            0,
		"# One\n\n# Two\n\n# One\n":                                   1,
		sentence + "\n\n" + sentence + "\n":                           1,
		sentence + "\nends\n" + sentence + " and ends\n":              1,
		sentence + "\nx\nx\nx\nx\n" + sentence + " ends\n":            0,
		sentence + "\n" + sentence[:30] + " with three other words\n": 0,
		"```sh\n" + sentence + "\n" + sentence + "\n```\n":            0,
		"```sh\nx\n":        1,
		"<<<<<<< HEAD\nx\n": 1,
	} {
		if faults := repetitions(text); len(faults) != want {
			t.Errorf("%q: %q, want %d", text, faults, want)
		}
	}
}

// linked returns the pages of the repository that a page links to.
func linked(t *testing.T, page string) (pages []string) {
	t.Helper()
	for _, found := range link.FindAllStringSubmatch(read(t, page), -1) {
		path, _, _ := strings.Cut(found[1], "#")
		if strings.HasSuffix(path, ".md") && !strings.Contains(path, "://") {
			pages = append(pages, filepath.Join(filepath.Dir(page), path))
		}
	}
	return pages
}

// TestREADMEIsShort: the README is for the first day; the rest is in docs.
func TestREADMEIsShort(t *testing.T) {
	atRoot(t)
	if n := strings.Count(read(t, "README.md"), "\n"); n > 150 {
		t.Errorf("README.md has %d lines; the limit is 150", n)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anchors returns the link targets of a document's headings.
func anchors(text string) []string {
	var all []string
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
	}
	return all
}
