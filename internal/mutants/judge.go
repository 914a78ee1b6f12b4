package main

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"boxgate/internal/mutants/mutation"
)

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
