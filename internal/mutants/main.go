// Command mutants shows that the tests notice when a protection is removed. For each file of mutants/ it builds the
// named tests without the protection, by `go build -overlay`, and requires that they fail. The sources on disk are not
// changed.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"boxgate/internal/mutants/mutation"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

type options struct {
	root     string
	run      string
	base     string
	list     bool
	jobs     int
	timeout  time.Duration
	baseline bool
	work     bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.root, "C", ".", "root of the module, which has the folder mutants/")
	flags.StringVar(&o.run, "run", "", "only mutants whose name or promise matches this `regexp`")
	flags.StringVar(&o.base, "base", "", "only mutants of packages that changed since this `revision`, or that changed themselves or whose tests did")
	flags.BoolVar(&o.list, "list", false, "list the mutants and their tests, run nothing")
	flags.IntVar(&o.jobs, "j", 2, "mutants under way at once")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Minute, "most time for one test")
	flags.BoolVar(&o.baseline, "baseline", true, "first demand that each test passes without a mutation")
	flags.BoolVar(&o.work, "work", false, "keep the mutated files and the tests' output, and print where")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		err := fmt.Errorf("unexpected argument %q; choose mutants with -run", flags.Arg(0))
		fmt.Fprintln(stderr, err)
		return o, err
	}
	root, err := filepath.Abs(o.root)
	o.root = root
	return o, err
}

// run returns the exit status: 0 if every mutant was killed, 1 if not, 2 for a mistake in the command.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if err != nil {
		return 2
	}
	mutants, err := choose(ctx, o)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 2
	}
	if o.list {
		list(stdout, mutants)
		return 0
	}
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	if o.work {
		fmt.Fprintln(stdout, "work:", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	l := newLab(o, dir)
	s := summary{out: stdout, begun: time.Now()}
	var g errgroup.Group
	g.SetLimit(max(1, o.jobs))
	for _, m := range mutants {
		g.Go(func() error {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // interrupted, which the summary says
			}
			if o := l.try(ctx, m); ctx.Err() == nil { // an interrupted test says nothing
				s.add(o)
			}
			return nil
		})
	}
	_ = g.Wait()
	return s.close(len(mutants))
}

// choose returns the mutants to run. There may be none only if a revision is given.
func choose(ctx context.Context, o options) ([]mutation.Mutant, error) {
	want, err := regexp.Compile(o.run)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	all, err := mutation.Load(filepath.Join(o.root, "mutants"))
	if err != nil {
		return nil, err
	}
	chosen := slices.DeleteFunc(all, func(m mutation.Mutant) bool {
		return !want.MatchString(m.Name) && !slices.ContainsFunc(m.Promises, want.MatchString)
	})
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no mutant in %s matches %q", filepath.Join(o.root, "mutants"), o.run)
	}
	if o.base == "" {
		return chosen, nil
	}
	c, err := changesSince(ctx, o.root, o.base)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(chosen, func(m mutation.Mutant) bool { return !c.touch(m) }), nil
}

func list(out io.Writer, mutants []mutation.Mutant) {
	for _, m := range mutants {
		fmt.Fprintf(out, "%s: %s\n", m.Name, m.Summary)
		for _, p := range m.Promises {
			fmt.Fprintf(out, "    promise %s\n", p)
		}
		for _, t := range m.Tests {
			fmt.Fprintf(out, "    test    %s\n", t)
		}
	}
}

func names(tests []mutation.Test) string {
	var out []string
	for _, t := range tests {
		out = append(out, t.String())
	}
	return strings.Join(out, ", ")
}
