// Command testgate runs go test and decides whether the tests pass: a failed test is run again alone, once. If it
// passes then, the run passes and lists it at the end. docs/testing.md lists the tests that are never repeated.
//
//	go run ./internal/testgate [-slow] [-log FILE] [-flaky FILE] -- [arguments of go test]
//
// It prints the output of go test. The last line is "N passed, N failed, N skipped", which counts test functions, and
// each package that failed without a failed test. The exit status is 0 if all passed, 2 for a usage error, 130 if
// interrupted, else 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	status := run(ctx, os.Args[1:])
	stop()
	os.Exit(status)
}

func run(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("testgate", flag.ContinueOnError)
	goCommand := flags.String("go", "go", "the go `command`")
	log := flags.String("log", "", "keep the output of go test -json in `file`")
	slow := flags.Bool("slow", false, "print the slowest packages and tests at the end")
	flaky := flags.String("flaky", "", "read the list of flaky tests from `file` instead of the one compiled in")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	g := &gate{command: *goCommand, args: parseArguments(flags.Args()), out: os.Stdout, slow: *slow}
	g.verbose = g.args.has("v", "bench", "list", "fuzz")
	if err := g.prepare(*log, *flaky); err != nil {
		fmt.Fprintln(os.Stderr, "testgate:", err)
		return 2
	}
	status, err := g.run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testgate:", err)
	}
	return status
}

// prepare reads the list of flaky tests and creates the log.
func (g *gate) prepare(log, flaky string) error {
	list := committed
	if flaky != "" {
		text, err := os.ReadFile(flaky)
		if err != nil {
			return err
		}
		list = string(text)
	}
	var err error
	if g.flaky, err = parseFlaky(list); err != nil {
		return fmt.Errorf("the list of flaky tests: %w", err)
	}
	g.log = io.Discard
	if log != "" {
		g.log, err = os.Create(log)
	}
	return err
}

// arguments are the arguments of `go test`, taken apart so that a single test can be run with the same flags.
type arguments struct {
	flags    []flagArg
	packages []string
	rest     []string // -args and the following arguments, for the test binary
}

// flagArg is a flag without its dashes, and the original arguments.
type flagArg struct {
	name string
	raw  []string
}

// switches are the flags of go test that take no value in a separate argument.
var switches = strings.Fields("a artifacts asan benchmem buildvcs c cover failfast fullpath i json linkshared modcacherw msan n race short trimpath v work x")

// perRun are the flags that select tests, or name files that a second run would overwrite.
var perRun = strings.Fields("bench blockprofile count coverprofile cpuprofile failfast fuzz fuzztime json list memprofile mutexprofile o outputdir run shuffle skip trace v")

func parseArguments(args []string) arguments {
	var out arguments
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, value, hasValue := strings.Cut(strings.TrimPrefix(strings.TrimLeft(arg, "-"), "test."), "=")
		switch {
		case name == "args" && strings.HasPrefix(arg, "-"):
			out.rest = args[i:]
			return out
		case !strings.HasPrefix(arg, "-"):
			out.packages = append(out.packages, arg)
		case hasValue || slices.Contains(switches, name) || i+1 == len(args):
			if hasValue && value == "false" && slices.Contains(switches, name) {
				continue // ignored
			}
			out.flags = append(out.flags, flagArg{name, []string{arg}})
		default:
			out.flags = append(out.flags, flagArg{name, []string{arg, args[i+1]}})
			i++
		}
	}
	return out
}

// has reports whether one of the named flags is given.
func (a arguments) has(names ...string) bool {
	return slices.ContainsFunc(a.flags, func(f flagArg) bool { return slices.Contains(names, f.name) })
}

// all returns the arguments for the run of all tests.
func (a arguments) all() []string {
	var out []string
	for _, f := range a.flags {
		if f.name != "json" {
			out = append(out, f.raw...)
		}
	}
	return slices.Concat(out, a.packages, a.rest)
}

// only returns the arguments that run a single test, bypassing the test cache.
func (a arguments) only(id testID) []string {
	var out []string
	for _, f := range a.flags {
		if !slices.Contains(perRun, f.name) {
			out = append(out, f.raw...)
		}
	}
	out = append(out, "-count=1", "-run=^"+regexp.QuoteMeta(id.test)+"$", id.pkg)
	return append(out, a.rest...)
}
