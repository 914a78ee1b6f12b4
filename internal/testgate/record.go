package main

import (
	"slices"
	"strings"
)

// event is a line of `go test -json`: see `go doc cmd/test2json` and, for builds, `go help buildjson`.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

// result is the result of a test or a subtest.
type result struct {
	name    string
	action  string // pass, fail or skip; empty while it runs
	elapsed float64
	output  []string
}

// packageRecord is the result of a package's tests.
type packageRecord struct {
	name    string
	action  string // pass, fail or skip; empty while it runs
	elapsed float64
	tests   []*result // in the order in which they started
	byName  map[string]*result
	output  []string // output outside of tests
}

// record collects the events of a run of go test.
type record struct {
	packages map[string]*packageRecord
	order    []*packageRecord
}

// add adds an event and returns its package.
func (r *record) add(e event) *packageRecord {
	p := r.packages[e.Package]
	if p == nil {
		p = &packageRecord{name: e.Package, byName: map[string]*result{}}
		if r.packages == nil {
			r.packages = map[string]*packageRecord{}
		}
		r.packages[e.Package] = p
		r.order = append(r.order, p)
	}
	if e.Test == "" {
		switch e.Action {
		case "output":
			p.output = append(p.output, e.Output)
		case "pass", "fail", "skip":
			p.action, p.elapsed = e.Action, e.Elapsed
		}
		return p
	}
	test := p.byName[e.Test]
	if test == nil {
		test = &result{name: e.Test}
		p.byName[e.Test] = test
		p.tests = append(p.tests, test)
	}
	switch e.Action {
	case "output":
		test.output = append(test.output, e.Output)
	case "pass", "skip":
		test.output = nil // not shown; a run of hours would keep all of it in memory
		fallthrough
	case "fail":
		test.action, test.elapsed = e.Action, e.Elapsed
	}
	return p
}

// roots returns the test functions. Subtests are part of their test function.
func (p *packageRecord) roots() []*result {
	return slices.DeleteFunc(slices.Clone(p.tests), func(t *result) bool { return strings.Contains(t.name, "/") })
}

// failed returns the test functions that failed.
func (p *packageRecord) failed() []testID {
	var out []testID
	for _, t := range p.roots() {
		if t.action == "fail" {
			out = append(out, testID{p.name, t.name})
		}
	}
	return out
}

// orderly reports whether the test binary of a failed package ran to its end: no panic, no timeout, no os.Exit in a
// test. Package testing prints the line FAIL last.
func (p *packageRecord) orderly() bool {
	crashed := func(line string) bool {
		return strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")
	}
	running := func(t *result) bool { return t.action == "" }
	return slices.Contains(p.output, "FAIL\n") && !slices.ContainsFunc(p.output, crashed) && !slices.ContainsFunc(p.tests, running)
}

func (p *packageRecord) cached() bool {
	return slices.ContainsFunc(p.output, func(line string) bool { return strings.Contains(line, "\t(cached)") })
}

// closing returns the line with which go test closes a package, and whether it was printed.
func (p *packageRecord) closing() (string, bool) {
	i := slices.IndexFunc(p.output, isClosing)
	if i < 0 {
		return "", false
	}
	return p.output[i], true
}

func isClosing(line string) bool {
	return strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "?   \t") ||
		strings.HasPrefix(line, "\t") && strings.Contains(line, "coverage:")
}

// failure returns the output of go test for a failed test: for the test and each failed subtest, the verdict and then
// its output.
func (p *packageRecord) failure(test string) string {
	var out strings.Builder
	for _, t := range p.tests {
		if t.name != test && !strings.HasPrefix(t.name, test+"/") || t.action == "pass" || t.action == "skip" {
			continue
		}
		verdict := slices.IndexFunc(t.output, isVerdict)
		if verdict >= 0 {
			out.WriteString(t.output[verdict])
		}
		for i, line := range t.output {
			if i != verdict && !strings.HasPrefix(line, "=== ") {
				out.WriteString(line)
			}
		}
	}
	return out.String()
}

func isVerdict(line string) bool { return strings.HasPrefix(strings.TrimLeft(line, " "), "--- FAIL: ") }

// raced reports whether the race detector reported a race. The report may be attributed to a different test than the
// failure.
func (p *packageRecord) raced() bool {
	race := func(line string) bool { return strings.Contains(line, "WARNING: DATA RACE") }
	return slices.ContainsFunc(p.output, race) ||
		slices.ContainsFunc(p.tests, func(t *result) bool { return slices.ContainsFunc(t.output, race) })
}

// passed reports whether a test ran and passed.
func (r *record) passed(id testID) bool {
	p := r.packages[id.pkg]
	return p != nil && p.action == "pass" && p.byName[id.test] != nil && p.byName[id.test].action == "pass"
}

// everything returns the output of a failed package without its closing line: the output of tests that failed or did
// not end, then, unless shown is set, the output outside of tests.
func (p *packageRecord) everything(shown bool) string {
	if shown || p.action == "pass" {
		return ""
	}
	var out strings.Builder
	for _, t := range p.roots() {
		out.WriteString(p.failure(t.name))
	}
	for _, line := range p.output {
		if !isClosing(line) {
			out.WriteString(line)
		}
	}
	return out.String()
}
