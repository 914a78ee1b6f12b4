package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/internal/mutants/mutation"
)

// lab builds and runs tests, with and without a mutation.
type lab struct {
	options
	dir string // scratch

	mu       sync.Mutex
	binaries map[string]func() (string, error) // by package, without a mutation
	checked  map[mutation.Test]func() (time.Duration, error)
}

func newLab(o options, dir string) *lab {
	return &lab{options: o, dir: dir, binaries: map[string]func() (string, error){}, checked: map[mutation.Test]func() (time.Duration, error){}}
}

// outcome is the result of one mutant.
type outcome struct {
	mutant   mutation.Mutant
	survived []failure // tests that passed without the protection
	broken   error     // why there is no result
	took     time.Duration
}

// failure is a test that did not do what was required, with the end of its output.
type failure struct {
	test   mutation.Test
	output string
}

// try removes one protection and runs its tests.
func (l *lab) try(ctx context.Context, m mutation.Mutant) (o outcome) {
	begun := time.Now()
	o.mutant = m
	defer func() { o.took = time.Since(begun) }()
	limits, err := l.checkBaseline(ctx, m)
	if err != nil {
		o.broken = err
		return o
	}
	overlay, dir, err := l.overlay(m)
	if err != nil {
		o.broken = err
		return o
	}
	binaries, err := l.buildMutant(ctx, m, overlay, dir)
	if err != nil {
		o.broken = err
		return o
	}
	for i, t := range m.Tests {
		r := l.runTest(ctx, t, binaries[t.Package], filepath.Join(dir, fmt.Sprintf("%d.log", i)), overlay, limits[i])
		switch {
		case r.err != nil:
			o.broken = r.err
			return o
		case r.passed:
			o.survived = append(o.survived, failure{t, tail(r.output)})
		}
	}
	for _, b := range binaries { // a hundred megabytes together, for each mutant
		_ = os.Remove(b)
	}
	return o
}

// A test that hangs without the protection says nothing about it, and is found out after a multiple of the time that it takes
// with the protection. It has leastTime in any case: end-to-end tests wait two minutes for an event that does not come
// (harness.Patience) before they fail on an assertion of their own.
const (
	timesBaseline = 10
	leastTime     = 3 * time.Minute
)

// checkBaseline requires that the tests pass on the unchanged sources: a test that always fails kills nothing. It returns
// the time that each test may take without the protection.
func (l *lab) checkBaseline(ctx context.Context, m mutation.Mutant) ([]time.Duration, error) {
	limits := make([]time.Duration, len(m.Tests))
	for i, t := range m.Tests {
		limits[i] = l.timeout
		if !l.baseline {
			continue
		}
		took, err := l.passes(ctx, t)()
		if err != nil {
			return nil, err
		}
		limits[i] = min(max(timesBaseline*took, leastTime), l.timeout)
	}
	return limits, nil
}

// passes returns a function that runs t without a mutation, once however many mutants name it, and returns how long it took.
func (l *lab) passes(ctx context.Context, t mutation.Test) func() (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.checked[t]; f != nil {
		return f
	}
	if l.binaries[t.Package] == nil {
		bin := filepath.Join(l.dir, fmt.Sprintf("baseline-%d.test", len(l.binaries)))
		l.binaries[t.Package] = sync.OnceValues(func() (string, error) {
			return bin, l.compile(ctx, t.Package, bin, "")
		})
	}
	binary, log := l.binaries[t.Package], filepath.Join(l.dir, fmt.Sprintf("baseline-%d.log", len(l.checked)))
	l.checked[t] = sync.OnceValues(func() (time.Duration, error) {
		bin, err := binary()
		if err != nil {
			return 0, fmt.Errorf("without a mutation: %w", err)
		}
		begun := time.Now()
		r := l.runTest(ctx, t, bin, log, "", l.timeout)
		if r.err == nil && !r.passed {
			r.err = fmt.Errorf("%s fails without a mutation as well:\n%s", t, tail(r.output))
		}
		return time.Since(begun), r.err
	})
	return l.checked[t]
}

// overlay writes the mutated files, and returns the overlay's path and the mutant's scratch directory.
func (l *lab) overlay(m mutation.Mutant) (path, dir string, err error) {
	dir = filepath.Join(l.dir, m.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", err
	}
	replace, err := m.Overlay(l.root, dir)
	if err != nil {
		return "", "", err
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, dir, os.WriteFile(path, data, 0o600)
}

// The gateway of end-to-end tests, which is a program of its own, and the environment variable with its path.
const (
	endToEnd        = "./e2e/"
	gatewayPackage  = "./e2e/harness/gateway"
	gatewayVariable = "GATEWAY_TEST_BINARY"
)

// buildMutant builds one test binary for each package that has tests of m, and the gateway for end-to-end tests, with the
// mutated packages in them.
func (l *lab) buildMutant(ctx context.Context, m mutation.Mutant, overlay, dir string) (map[string]string, error) {
	binaries := map[string]string{}
	for _, t := range m.Tests {
		if binaries[t.Package] != "" {
			continue
		}
		binaries[t.Package] = filepath.Join(dir, fmt.Sprintf("%d.test", len(binaries)))
		if err := l.compile(ctx, t.Package, binaries[t.Package], overlay); err != nil {
			return nil, fmt.Errorf("the mutant: %w", err)
		}
	}
	if slices.ContainsFunc(m.Tests, func(t mutation.Test) bool { return strings.HasPrefix(t.Package, endToEnd) }) {
		binaries[gatewayPackage] = gatewayBeside(filepath.Join(dir, "0.test"))
		args := []string{"build", "-buildvcs=false", "-ldflags=-s -w", "-overlay", overlay, "-o", binaries[gatewayPackage], gatewayPackage}
		if out, err := l.goCommand(ctx, args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("the mutant: the gateway does not build: %w\n%s", err, tail(out))
		}
	}
	return binaries, nil
}

// gatewayBeside returns the path of the gateway that belongs to a test binary.
func gatewayBeside(binary string) string { return filepath.Join(filepath.Dir(binary), "gateway") }

func (l *lab) compile(ctx context.Context, pkg, to, overlay string) error {
	args := []string{"test", "-c", "-ldflags=-s -w", "-o", to} // linking is most of the time that a mutant takes
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	out, err := l.goCommand(ctx, append(args, pkg)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("the tests of %s do not build: %w\n%s", pkg, err, tail(out))
	}
	if _, err := os.Stat(to); err != nil {
		return fmt.Errorf("%s has no tests", pkg)
	}
	return nil
}

func (l *lab) goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = l.root
	return cmd
}

// result is how a test ended. If err is set there is no result.
type result struct {
	passed bool
	output []byte
	err    error
}

// runTest runs one test in its package's folder. Only a failure that the test itself reports counts as one: a panic or
// a test that does not end in time may have any cause.
func (l *lab) runTest(ctx context.Context, t mutation.Test, binary, log, overlay string, limit time.Duration) result {
	out, err := os.Create(log) // a file: children that outlive the test do not block the runner
	if err != nil {
		return result{err: err}
	}
	defer out.Close()
	ctx, cancel := context.WithTimeout(ctx, limit+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.v", "-test.count=1", "-test.run="+t.Run, "-test.timeout="+limit.String())
	cmd.Dir = filepath.Join(l.root, t.Package)
	cmd.Stdout, cmd.Stderr = out, out
	if overlay != "" { // for tests that build programs of their own
		cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
		if strings.HasPrefix(t.Package, endToEnd) {
			cmd.Env = append(cmd.Env, gatewayVariable+"="+gatewayBeside(binary))
		}
	}
	failed := cmd.Run()
	output, err := os.ReadFile(log)
	if err != nil {
		return result{err: err}
	}
	if r := judge(t, output, failed); !bytes.Contains(output, hung) && ctx.Err() == nil {
		return r
	}
	said, _, _ := bytes.Cut(output, hung) // what follows are the stacks of all goroutines
	return result{output: output, err: fmt.Errorf("%s did not end within %s\n%s", t, limit, tail(said))}
}

// hung is in the output of a test that did not end in time.
var hung = []byte("panic: test timed out after ")

var (
	failLine = regexp.MustCompile(`(?m)^--- FAIL: ([^\s(]+) \(`)
	skipLine = regexp.MustCompile(`(?m)^--- SKIP: ([^\s(]+) \(`)
	runLine  = regexp.MustCompile(`(?m)^=== RUN   ([^\s/]+)$`)
)

func judge(t mutation.Test, output []byte, failed error) result {
	r := result{output: output}
	var exit *exec.ExitError
	switch {
	case !anyNames(runLine, t, output):
		r.err = fmt.Errorf("%s: no such test ran\n%s", t, tail(output))
	case anyNames(skipLine, t, output):
		r.err = fmt.Errorf("%s was skipped\n%s", t, tail(output))
	case failed == nil:
		r.passed = true
	case !errors.As(failed, &exit) || exit.ExitCode() != 1 || !anyNames(failLine, t, output):
		r.err = fmt.Errorf("%s did not end by a failure of its own (%w)\n%s", t, failed, tail(output))
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
