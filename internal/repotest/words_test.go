package repotest

import (
	"flag"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pattern is a turn of phrase that is hard to read when it is frequent. The limits are twice the figures of tailscale's
// comments.
type pattern struct {
	name   string  // one word, in the table of exceptions
	advice string  // for the author of a text that has too many
	limit  float64 // hits per 1,000 words
	match  *regexp.Regexp
}

var patterns = []pattern{
	{"what", `name the thing instead of a clause that begins with "what"`, 0.2,
		regexp.MustCompile(`(?i)\bwhat\s+(?:a|the|there|it|they|others|all|one|nobody|boxes|is|was|are|were|has|have|can|could|may|must)\b`)},
	{"nothing", `write "no client", "is empty" or "has no effect" instead of "nobody", "nothing" or "none"`, 1.2,
		regexp.MustCompile(`(?i)\b(?:nobody|nothing|none)\b`)},
	{"says", `data "reports", "contains" or "records"; only people and specifications say and tell`, 0.4,
		regexp.MustCompile(`(?i)\b(?:says|said|tells?|(?:is|are|was)\s+told)\b`)},
	{"those", `repeat the noun instead of "those that" or "those of"`, 0.05,
		regexp.MustCompile(`(?i)\bthose\s+(?:that|of|who|which)\b`)},
	{"which", `split the sentence instead of joining it with "by which", "of which" and the like`, 1.0,
		regexp.MustCompile(`(?i)\b(?:by|of|in|with|from|to|for|under|about)\s+which\b`)},
	{"now", `write "immediately", "at the same time", "no longer" or a time instead of "at once", "any more", "by now" or "meanwhile"`, 0.24,
		regexp.MustCompile(`(?i)\b(?:meanwhile|in\s+the\s+meantime|by\s+now|at\s+once|any\s+more)\b`)},
}

// always is the number of hits allowed in any text, so that a single word does not fail a short one.
const always = 2

// most returns the number of hits of p allowed in a text of n words.
func (p pattern) most(n int) int { return max(always, int(p.limit*float64(n)/1000)) }

// prose is the text of a package's comments or of a page, in paragraphs.
type prose []string

func (p prose) words() int {
	n := 0
	for _, paragraph := range p {
		n += len(strings.Fields(paragraph))
	}
	return n
}

func (p prose) hits(of pattern) int {
	n := 0
	for _, paragraph := range p {
		n += len(of.match.FindAllString(paragraph, -1))
	}
	return n
}

// exceptions are the texts that exceed a limit, with the allowed number of hits, by text and pattern.
type exceptions map[string]map[string]int

// exceptionsFile has a line for each exception: a package or page, a pattern and its bound. A bound may only fall, and an
// unnecessary line must be removed. After a text was moved or improved,
//
//	go test ./internal/repotest -run TestWords -update
//
// rewrites the file with the present counts. Check in its diff that no bound has risen.
const exceptionsFile = "internal/repotest/testdata/words.txt"

var update = flag.Bool("update", false, "write the table of exceptions of TestWords with the present counts")

// TestWords counts the patterns in the comments of each package, except in test files, and in each page of the
// documentation. It fails for a text above a limit or, if the text is an exception, above its bound.
func TestWords(t *testing.T) {
	atRoot(t)
	texts := comments(t)
	maps.Copy(texts, pages(t))
	excess := exceptions{}
	for name, text := range texts {
		for _, p := range patterns {
			if n := text.hits(p); n > p.most(text.words()) {
				excess.add(name, p.name, n)
			}
		}
	}
	if *update {
		excess.write(t)
		return
	}
	known := readExceptions(t)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		text := texts[name]
		for _, p := range patterns {
			n, bound := excess[name][p.name], known[name][p.name]
			switch {
			case n > bound && bound > 0:
				t.Errorf("%s: %d hits of the pattern %q, and the bound in %s is %d: %s", name, n, p.name, exceptionsFile, bound, p.advice)
			case n > bound:
				t.Errorf("%s: %d hits of the pattern %q in %d words, and %d are the limit: %s", name, n, p.name, text.words(), p.most(text.words()), p.advice)
			case n == 0 && bound > 0:
				t.Errorf("%s keeps the limit for the pattern %q: remove its line from %s", name, p.name, exceptionsFile)
			}
		}
	}
	for name := range known {
		if _, ok := texts[name]; !ok {
			t.Errorf("%s lists %s, which does not exist", exceptionsFile, name)
		}
	}
}

func (e exceptions) add(name, pattern string, bound int) {
	if e[name] == nil {
		e[name] = map[string]int{}
	}
	e[name][pattern] = bound
}

func (e exceptions) write(t *testing.T) {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(e)) {
		for _, pattern := range slices.Sorted(maps.Keys(e[name])) {
			fmt.Fprintf(&out, "%s %s %d\n", name, pattern, e[name][pattern])
		}
	}
	if err := os.WriteFile(exceptionsFile, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readExceptions(t *testing.T) exceptions {
	all := exceptions{}
	for line := range strings.Lines(read(t, exceptionsFile)) {
		var name, kind string
		var bound int
		if _, err := fmt.Sscan(line, &name, &kind, &bound); err != nil || bound <= 0 {
			t.Fatalf("%s: %q is not a text, a pattern and a bound: %v", exceptionsFile, line, err)
		}
		if !slices.ContainsFunc(patterns, func(p pattern) bool { return p.name == kind }) {
			t.Fatalf("%s: no pattern is named %q", exceptionsFile, kind)
		}
		all.add(name, kind, bound)
	}
	return all
}

// comments returns the comments of each package by its folder. Test files, generated files and directives do not count.
func comments(t *testing.T) map[string]prose {
	all := map[string]prose{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") || ast.IsGenerated(s.file) {
			continue
		}
		for _, group := range s.file.Comments {
			all[path.Dir(s.path)] = append(all[path.Dir(s.path)], group.Text())
		}
	}
	return all
}

// pages returns the text of the README and of each page in docs.
func pages(t *testing.T) map[string]prose {
	paths, err := documents()
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	all := map[string]prose{}
	for _, p := range append(paths, "README.md") {
		all[p] = proseOf(read(t, p))
	}
	return all
}

var codeSpan = regexp.MustCompile("`[^`]*`")

// proseOf returns the paragraphs of a Markdown document without code and without the rows of tables that name tests.
func proseOf(text string) prose {
	var all prose
	var paragraph strings.Builder
	inCode := false
	for line := range strings.Lines(text + "\n\n") {
		line = strings.TrimSpace(line)
		fence := strings.HasPrefix(line, "```")
		inCode = inCode != fence
		switch {
		case fence, inCode, strings.HasPrefix(line, "|") && strings.Contains(line, "`Test"):
		case line == "":
			all = append(all, paragraph.String())
			paragraph.Reset()
		default:
			fmt.Fprintln(&paragraph, codeSpan.ReplaceAllString(line, "`"))
		}
	}
	return all
}

// TestWordsAreFound: the patterns match across line ends and in any case, and code and tables of tests do not count.
func TestWordsAreFound(t *testing.T) {
	text := proseOf("What\nis read, of\nwhich nothing is told at once.\nThose of a box say `nobody says`.\n\n" +
		"```\nnobody says what it has\n```\n| nothing | `TestNothing` |\n| none | `others` |\n")
	want := map[string]int{"what": 1, "nothing": 2, "says": 1, "those": 1, "which": 1, "now": 1}
	for _, p := range patterns {
		if n := text.hits(p); n != want[p.name] {
			t.Errorf("%d hits of %q, want %d", n, p.name, want[p.name])
		}
	}
}
