package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"boxgate/internal/mutants/mutation"
)

// lab runs tests, with and without a mutation.
type lab struct {
	options
	dir     string // scratch
	builder *builder
	ledger  *ledger

	mu      sync.Mutex
	checked map[mutation.Test]func() (time.Duration, error)
}

func newLab(o options, dir string, b *builder, led *ledger) *lab {
	return &lab{options: o, dir: dir, builder: b, ledger: led, checked: map[mutation.Test]func() (time.Duration, error){}}
}

// outcome is the result of one mutant.
type outcome struct {
	mutant   mutation.Mutant
	survived []failure     // tests that passed without the protection
	broken   error         // the reason why there is no result
	took     time.Duration // with the mutation, without waiting for slots
}

// failure is a test with an unexpected result, and the end of its output.
type failure struct {
	test   mutation.Test
	output string
}

// runMutant removes one protection and runs its tests.
func (l *lab) runMutant(ctx context.Context, m mutation.Mutant) (o outcome) {
	o.mutant = m
	baseline, err := l.checkBaseline(ctx, m)
	if err != nil {
		o.broken = err
		return o
	}
	begun := time.Now()
	dir := filepath.Join(l.dir, m.Name)
	build, err := l.builder.mutant(ctx, m, dir)
	if err != nil {
		o.broken = err
		return o
	}
	var waited time.Duration
	defer func() { o.took = max(0, time.Since(begun)-waited) }()
	for i, t := range m.Tests {
		r := l.runTest(ctx, t, build, filepath.Join(dir, fmt.Sprintf("%d.log", i)), baseline[i])
		waited += r.waited
		switch {
		case r.err != nil:
			o.broken = r.err
			return o
		case r.passed:
			o.survived = append(o.survived, failure{t, tail(r.output)})
		}
	}
	build.remove() // a hundred megabytes, for each mutant
	return o
}

// A test that hangs without the protection proves nothing. A unit test is stopped after a multiple of its time with the
// protection, but not before leastTime. An end-to-end test may wait for a slot first, so it gets the whole timeout.
const (
	timesBaseline = 10
	leastTime     = 3 * time.Minute
)

// Without the protection, an end-to-end test waits until its patience ends for an event that never comes. With the
// protection, no wait took longer than the whole test.
const (
	patienceVariable = "GATEWAY_TEST_PATIENCE"
	timesPatience    = 3
	leastPatience    = 15 * time.Second
	mostPatience     = 2 * time.Minute // harness.Patience
)

// checkBaseline requires that the tests pass on the unchanged sources: a test that always fails kills no mutant. It
// returns the duration of each test, or 0 if it is unknown.
func (l *lab) checkBaseline(ctx context.Context, m mutation.Mutant) ([]time.Duration, error) {
	baseline := make([]time.Duration, len(m.Tests))
	for i, t := range m.Tests {
		if !l.baseline {
			continue
		}
		var err error
		if baseline[i], err = l.passes(ctx, t)(); err != nil {
			return nil, err
		}
	}
	return baseline, nil
}

// passes returns a function that runs t without a mutation and returns its duration. However many mutants name t, it
// runs once.
func (l *lab) passes(ctx context.Context, t mutation.Test) func() (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.checked[t]; f != nil {
		return f
	}
	log := filepath.Join(l.dir, fmt.Sprintf("baseline-%d.log", len(l.checked)))
	l.checked[t] = sync.OnceValues(func() (time.Duration, error) {
		key := l.ledger.ofTest(t)
		if took, ok := l.ledger.lookup(key); ok {
			return took, nil
		}
		build, err := l.builder.original(ctx, t)
		if err != nil {
			return 0, fmt.Errorf("without a mutation: %w", err)
		}
		begun := time.Now()
		r := l.runTest(ctx, t, build, log, 0)
		took := max(0, time.Since(begun)-r.waited)
		if r.err == nil && !r.passed {
			r.err = fmt.Errorf("%s fails without a mutation as well:\n%s", t, tail(r.output))
		}
		if r.err == nil {
			r.err = l.ledger.record(key, t.String(), took)
		}
		return took, r.err
	})
	return l.checked[t]
}

// runTest runs one test in its package's folder. Only a failure reported by the test itself counts: a panic or a
// timeout may have any cause. baseline is the test's duration without a mutation, or 0.
func (l *lab) runTest(ctx context.Context, t mutation.Test, b build, log string, baseline time.Duration) result {
	out, err := os.Create(log) // a file, so that children that outlive the test do not block the runner
	if err != nil {
		return result{err: err}
	}
	defer out.Close()
	limit := l.timeout
	if baseline > 0 && !endsToEnd(t) {
		limit = min(max(timesBaseline*baseline, leastTime), limit)
	}
	ctx, cancel := context.WithTimeout(ctx, limit+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.tests[t.Package], "-test.v", "-test.count=1", "-test.run="+t.Run, "-test.timeout="+limit.String())
	cmd.Dir = filepath.Join(l.root, t.Package)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is handled by the runner
	cmd.Env = append(os.Environ(), b.environment...)
	if baseline > 0 {
		cmd.Env = append(cmd.Env, patienceVariable+"="+min(max(timesPatience*baseline, leastPatience), mostPatience).String())
	}
	failed := cmd.Run()
	output, err := os.ReadFile(log)
	if err != nil {
		return result{err: err}
	}
	if r := resultOf(t, output, failed); !bytes.Contains(output, hung) && ctx.Err() == nil {
		return r
	}
	said, _, _ := bytes.Cut(output, hung) // the rest is the stacks of all goroutines
	return result{output: output, err: fmt.Errorf("%s did not end within %s\n%s", t, limit, tail(said))}
}

// endsToEnd reports whether a test runs the gateway as a program.
func endsToEnd(t mutation.Test) bool { return strings.HasPrefix(t.Package, endToEnd) }

// result is the result of a test, or the error that prevented one.
type result struct {
	passed bool
	output []byte
	err    error
	waited time.Duration // for slots of labs
}

// waitLine matches the line that harness.Main prints about the tests of a package.
var waitLine = regexp.MustCompile(`(?m)^labs: .*; waited (\S+) for slots$`)

func waitedFor(output []byte) time.Duration {
	found := waitLine.FindSubmatch(output)
	if found == nil {
		return 0
	}
	d, err := time.ParseDuration(string(found[1]))
	if err != nil {
		return 0
	}
	return d
}

// hung is in the output of a test that timed out.
var hung = []byte("panic: test timed out after ")

var (
	failLine = regexp.MustCompile(`(?m)^--- FAIL: ([^\s(]+) \(`)
	skipLine = regexp.MustCompile(`(?m)^--- SKIP: ([^\s(]+) \(`)
	runLine  = regexp.MustCompile(`(?m)^=== RUN   ([^\s/]+)$`)
)

func resultOf(t mutation.Test, output []byte, failed error) result {
	r := result{output: output, waited: waitedFor(output)}
	var exit *exec.ExitError
	switch {
	case failed != nil && !errors.As(failed, &exit):
		r.err = fmt.Errorf("%s could not be run: %w", t, failed)
	case !anyNames(runLine, t, output):
		r.err = fmt.Errorf("%s: no such test ran\n%s", t, tail(output))
	case anyNames(skipLine, t, output):
		r.err = fmt.Errorf("%s was skipped\n%s", t, tail(output))
	case failed == nil:
		r.passed = true
	case exit.ExitCode() != 1 || !anyNames(failLine, t, output):
		r.err = fmt.Errorf("%s did not end with a failure of the test (%w)\n%s", t, failed, tail(output))
	}
	return r
}

// anyNames reports whether a line matched by re names a test of t.
func anyNames(re *regexp.Regexp, t mutation.Test, output []byte) bool {
	return slices.ContainsFunc(re.FindAllSubmatch(output, -1), func(m [][]byte) bool { return t.Matches(string(m[1])) })
}

// tail returns the last lines of a test's output, indented.
func tail(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	lines = lines[max(0, len(lines)-15):]
	for i, line := range lines {
		lines[i] = "        " + line[:min(len(line), 400)]
	}
	return strings.Join(lines, "\n")
}
