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
