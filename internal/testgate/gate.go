package main

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// maxRepeats is the maximum number of failed tests that are repeated. If more fail, the cause is not flakiness.
const maxRepeats = 5

// neverRepeated matches the names of tests whose failure matters even if it happens once in a thousand runs: a box
// reached or read something forbidden, or data was lost.
var neverRepeated = regexp.MustCompile(`(?i)attack|secret|lost`)

// gate is a run of tests.
type gate struct {
	command string // go
	args    arguments
	flaky   map[testID]listing
	verbose bool
	slow    bool
	log     io.Writer
	out     io.Writer

	record      record
	current     *packageRecord   // verbose: the package whose output is printed immediately
	buffered    []*packageRecord // verbose: packages whose output is buffered until current has ended
	outputs     map[*packageRecord][]string
	repeatable  []testID // failed tests that may be repeated, not yet printed
	failed      map[testID]bool
	secondTries []secondTry // passed when repeated
}

// secondTry is a test that failed and passed when repeated, with its first failure.
type secondTry struct {
	id    testID
	first string
}

// run runs the tests and returns the exit status.
func (g *gate) run(ctx context.Context) (int, error) {
	g.failed, g.outputs = map[testID]bool{}, map[*packageRecord][]string{}
	status, err := g.goTest(ctx, g.args.all(), g.observe)
	if err == nil {
		err = g.repeat(ctx)
	}
	if err != nil {
		g.showHeld()
		if ctx.Err() != nil {
			return 130, fmt.Errorf("interrupted: %w", err)
		}
		return 1, err
	}
	passed := g.finish()
	if status != 0 && !slices.ContainsFunc(g.record.order, func(p *packageRecord) bool { return p.action == "fail" }) {
		return 1, fmt.Errorf("go test failed with status %d, but no package did", status)
	}
	if !passed {
		return 1, nil
	}
	return 0, nil
}

// observe processes a line of the run of all tests.
func (g *gate) observe(e event, line []byte) {
	switch {
	case e.Action == "":
		_, _ = g.out.Write(line)
	case e.Action == "build-output":
		g.print(e.Output)
	case e.Package == "":
	default:
		p := g.record.add(e)
		if g.verbose {
			g.follow(p, e)
		}
		if e.Test == "" && p.action != "" && e.Action == p.action {
			g.packageEnded(p)
		}
	}
}

// follow prints the output of one package immediately, and buffers that of the others until it has ended.
func (g *gate) follow(p *packageRecord, e event) {
	if g.current == nil {
		g.current = p
	}
	if p != g.current && !slices.Contains(g.buffered, p) {
		g.buffered = append(g.buffered, p)
	}
	if e.Output == "" || e.Test == "" && isClosing(e.Output) {
		return
	}
	if p == g.current {
		g.print(e.Output)
	} else {
		g.outputs[p] = append(g.outputs[p], e.Output)
	}
}

// packageEnded prints the output and the closing line of a package that has ended.
func (g *gate) packageEnded(p *packageRecord) {
	if g.verbose && p != g.current {
		return
	}
	if p.action == "fail" {
		g.sortFailures(p)
	} else if line, ok := p.closing(); ok {
		g.print(line)
	}
	if !g.verbose {
		return
	}
	g.current = nil
	for len(g.buffered) > 0 && g.current == nil {
		g.current, g.buffered = g.buffered[0], g.buffered[1:]
		g.print(strings.Join(g.outputs[g.current], ""))
		delete(g.outputs, g.current)
		if g.current.action != "" {
			g.packageEnded(g.current)
			return
		}
	}
}

// sortFailures keeps the failures of a package that may be repeated, and prints the others.
func (g *gate) sortFailures(p *packageRecord) {
	failed := p.failed()
	if !p.orderly() || len(failed) == 0 {
		for _, id := range failed {
			g.failed[id] = true
		}
		g.print(p.everything(g.verbose))
		return
	}
	for _, id := range failed {
		g.failed[id] = true
		if why := g.neverRepeat(p, id); why != "" {
			g.show(id)
			g.printf("%v is not repeated: %s\n", id, why)
			continue
		}
		g.repeatable = append(g.repeatable, id)
		g.printf("%v failed, and is repeated at the end\n", id)
	}
}

// neverRepeat returns the reason not to run a failed test again, or "".
func (g *gate) neverRepeat(p *packageRecord, id testID) string {
	if known, ok := g.flaky[id]; ok {
		return fmt.Sprintf("its cause is known since %s (%s); fix it", known.since, known.cause)
	}
	if word := neverRepeated.FindString(id.test); word != "" {
		return fmt.Sprintf("its name says %s", strings.ToLower(word))
	}
	if p.raced() {
		return "the race detector found a race"
	}
	return ""
}

// repeat runs each repeatable test again, alone, unless there are too many.
func (g *gate) repeat(ctx context.Context) error {
	if len(g.failed) > maxRepeats {
		if len(g.repeatable) > 0 {
			g.printf("%d tests failed: none is repeated\n", len(g.failed))
		}
		g.showHeld()
		return nil
	}
	for len(g.repeatable) > 0 {
		id := g.repeatable[0]
		g.printf("repeating %v\n", id)
		var again record
		_, err := g.goTest(ctx, g.args.only(id), func(e event, line []byte) {
			switch {
			case e.Action == "":
				_, _ = g.out.Write(line)
			case e.Action == "build-output":
				g.print(e.Output)
			case e.Package != "":
				again.add(e)
			}
		})
		if err != nil {
			return err
		}
		first := g.record.packages[id.pkg].failure(id.test)
		if again.passed(id) {
			delete(g.failed, id)
			g.secondTries = append(g.secondTries, secondTry{id, first})
		} else {
			g.show(id)
			g.printf("%v failed again:\n", id)
			for _, p := range again.order {
				g.print(p.everything(false))
			}
		}
		g.repeatable = g.repeatable[1:]
	}
	return nil
}

// show prints the failure of a test unless it was printed already.
func (g *gate) show(id testID) {
	if !g.verbose {
		g.print(g.record.packages[id.pkg].failure(id.test))
	}
}

func (g *gate) showHeld() {
	for _, id := range g.repeatable {
		g.show(id)
	}
	g.repeatable = nil
}

// finish prints the end of the run and reports whether it passed.
func (g *gate) finish() bool {
	if g.slow {
		g.printSlowest()
	}
	for _, s := range g.secondTries {
		g.printf("passed on the second try: %v\n    %s\n", s.id, strings.ReplaceAll(strings.TrimSpace(s.first), "\n", "\n    "))
	}
	var total count
	for _, p := range g.record.order {
		tests := g.count(p)
		if p.action != "pass" && p.action != "skip" && g.close(p) {
			tests.failed = max(tests.failed, 1)
		}
		total.passed, total.failed, total.skipped = total.passed+tests.passed, total.failed+tests.failed, total.skipped+tests.skipped
	}
	if total.failed > 0 {
		g.printFailures()
		g.print("FAIL\n")
	}
	g.printf("%d passed, %d failed, %d skipped\n", total.passed, total.failed, total.skipped)
	return total.failed == 0
}

// Limits of the summary of failures, so that it is whole where only the end of a log is kept.
const (
	maxSummaryTests = 10
	maxSummaryLines = 12 // of each failure
)

// printFailures prints the name and the first lines of each failure again, after the output of all packages.
func (g *gate) printFailures() {
	left := maxSummaryTests
	summarize := func(name, text string) {
		if left--; left < 0 {
			return
		}
		lines := strings.Split(strings.TrimSpace(text), "\n")
		if len(lines) > maxSummaryLines {
			lines = append(lines[:maxSummaryLines], "...")
		}
		g.printf("failed: %s\n    %s\n", name, strings.Join(lines, "\n    "))
	}
	for _, p := range g.record.order {
		if p.action != "fail" {
			continue
		}
		failed := p.failed()
		for _, id := range failed {
			if g.failed[id] {
				summarize(id.String(), p.failure(id.test))
			}
		}
		if len(failed) == 0 {
			summarize(p.name, p.everything(false))
		}
	}
	if left < 0 {
		g.printf("failed: %d more\n", -left)
	}
}

// count is the number of test functions with each outcome.
type count struct{ passed, failed, skipped int }

func (g *gate) count(p *packageRecord) count {
	var n count
	for _, t := range p.roots() {
		switch {
		case t.action == "skip":
			n.skipped++
		case t.action == "pass" || t.action == "fail" && !g.failed[testID{p.name, t.name}]:
			n.passed++
		default:
			n.failed++
		}
	}
	return n
}

// close prints the closing line of a failed package, and reports whether it still fails after the repeats.
func (g *gate) close(p *packageRecord) bool {
	failed := p.failed()
	still := len(failed) == 0 || slices.ContainsFunc(failed, func(id testID) bool { return g.failed[id] })
	if !still {
		g.printf("ok  \t%s\t%.3fs\n", p.name, p.elapsed)
	} else if line, ok := p.closing(); ok {
		g.print(line)
	} else {
		g.printf("FAIL\t%s\t%.3fs\n", p.name, p.elapsed)
	}
	return still
}

// printSlowest prints the slowest packages and tests. Cached results count as 0.
func (g *gate) printSlowest() {
	type timed struct {
		name    string
		seconds float64
	}
	var packages, tests []timed
	for _, p := range g.record.order {
		if p.cached() {
			continue
		}
		packages = append(packages, timed{p.name, p.elapsed})
		for _, t := range p.roots() {
			tests = append(tests, timed{p.name + " " + t.name, t.elapsed})
		}
	}
	for i, list := range [][]timed{packages, tests} {
		slices.SortStableFunc(list, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
		g.printf("slowest %s:\n", []string{"packages", "tests"}[i])
		for _, t := range list[:min(10, len(list))] {
			g.printf("%8.1fs  %s\n", t.seconds, t.name)
		}
	}
}

func (g *gate) print(text string) { _, _ = io.WriteString(g.out, text) }

func (g *gate) printf(format string, args ...any) { _, _ = fmt.Fprintf(g.out, format, args...) }

// grace is the time that go test and its tests have to exit after an interrupt.
const grace = 10 * time.Second

// goTest runs go test and calls each for every line of its output: with an event, or with the line if it is not an
// event. It returns the exit status. When ctx is done, it interrupts go test and the tests, waits for them, and returns
// the error of ctx.
func (g *gate) goTest(ctx context.Context, args []string, each func(e event, line []byte)) (int, error) {
	if ctx.Err() != nil {
		return 1, ctx.Err()
	}
	cmd := exec.Command(g.command, append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	// In its own process group, go test and the tests receive the same interrupt however testgate itself was
	// interrupted.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	group := -cmd.Process.Pid
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
			_ = syscall.Kill(group, syscall.SIGINT)
		}
		select {
		case <-ended:
		case <-time.After(grace):
			_ = syscall.Kill(group, syscall.SIGKILL)
		}
	}()
	readErr := g.readEvents(stdout, each)
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil && exit.Exited() {
		return exit.ExitCode(), readErr
	}
	return 0, errors.Join(ctx.Err(), err, readErr)
}

// readEvents reads the output of go test to its end and copies it to the log.
func (g *gate) readEvents(r io.Reader, each func(e event, line []byte)) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			if _, err := g.log.Write(line); err != nil {
				return fmt.Errorf("writing the log: %w", err)
			}
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				e = event{}
			}
			each(e, line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// committed is the list of flaky tests embedded in the command.
//
//go:embed flaky.txt
var committed string

// testID names a test function: its package's import path and its name.
type testID struct{ pkg, test string }

func (id testID) String() string { return id.pkg + " " + id.test }

// listing is an entry in the list of flaky tests.
type listing struct{ since, cause string }

// parseFlaky reads a list of flaky tests: lines of a package, a test, a date and a cause. Lines that begin with # and empty
// ones are comments.
func parseFlaky(text string) (map[testID]listing, error) {
	list := map[testID]listing{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 4 {
			return nil, fmt.Errorf("line %d: want a package, a test, a date and a cause", number)
		}
		if _, err := time.Parse(time.DateOnly, fields[2]); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		id := testID{fields[0], fields[1]}
		if strings.Contains(id.test, "/") {
			return nil, fmt.Errorf("line %d: %s is a subtest; list the test function", number, id.test)
		}
		if _, twice := list[id]; twice {
			return nil, fmt.Errorf("line %d: %v is listed twice", number, id)
		}
		list[id] = listing{since: fields[2], cause: strings.Join(fields[3:], " ")}
	}
	return list, nil
}
