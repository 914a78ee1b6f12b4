// Command mutants verifies that the tests notice the removal of a protection. For each file of mutants/ it builds the
// named tests without the protection, using `go build -overlay`, and requires that they fail. The sources on disk are
// not changed.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"boxgate/internal/mutants/mutation"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal kills this process immediately
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
	ledger   string
	fresh    bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.root, "C", ".", "root of the module, which has the folder mutants/")
	flags.StringVar(&o.run, "run", "", "only mutants whose name or promise matches this `regexp`")
	flags.StringVar(&o.base, "base", "", "only mutants of packages that changed since this `revision`, or that changed themselves or whose tests did")
	flags.BoolVar(&o.list, "list", false, "list the mutants and their tests without running them")
	flags.IntVar(&o.jobs, "j", 4*runtime.NumCPU(), "mutants under way at once")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Minute, "most time for one test")
	flags.BoolVar(&o.baseline, "baseline", true, "first demand that each test passes without a mutation")
	flags.BoolVar(&o.work, "work", false, "keep the mutated files and the tests' output, and print where")
	flags.StringVar(&o.ledger, "ledger", "", "record killed mutants in this `file`, and skip them while the sources that they depend on are unchanged")
	flags.BoolVar(&o.fresh, "fresh", false, "run all again, whatever the ledger has")
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
	status, err := experiment(ctx, o, dir, mutants, stdout)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return status
}

// experiment tries the mutants, the ones without end-to-end tests first, and returns the exit status.
func experiment(ctx context.Context, o options, dir string, mutants []mutation.Mutant, out io.Writer) (status int, err error) {
	s := summary{out: out, start: time.Now()}
	led, err := o.openLedger(ctx, mutants)
	if err != nil {
		return 1, err
	}
	defer led.close()
	todo := slices.DeleteFunc(slices.Clone(mutants), func(m mutation.Mutant) bool {
		took, killed := led.lookup(led.ofMutant(m))
		if killed {
			s.addBefore(m, took)
		}
		return killed
	})
	if len(todo) == 0 {
		return s.close(len(mutants)), nil
	}
	all, err := mutation.Load(filepath.Join(o.root, "mutants")) // the programs contain all mutants, whichever are selected
	if err != nil {
		return 1, err
	}
	b, err := newBuilder(ctx, o.root, dir, all)
	if err != nil {
		return 1, err
	}
	b.printLeft(out, todo)
	slices.SortStableFunc(todo, func(a, b mutation.Mutant) int { return cmp.Compare(labs(a), labs(b)) })
	l := newLab(o, dir, b, led)
	var g errgroup.Group
	g.SetLimit(max(1, o.jobs))
	for _, m := range todo {
		g.Go(func() error {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // interrupted, which the summary reports
			}
			o := l.runMutant(context.WithoutCancel(ctx), m) // a killed test would leave processes and namespaces behind
			s.add(o)
			if o.survived == nil && o.broken == nil {
				return led.record(led.ofMutant(m), m.Name, o.took)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 1, err
	}
	return s.close(len(mutants)), nil
}

// openLedger opens the ledger. Without a file name it returns an empty one.
func (o options) openLedger(ctx context.Context, mutants []mutation.Mutant) (*ledger, error) {
	if o.ledger == "" {
		return &ledger{}, nil
	}
	sources, err := hashSources(ctx, o.root, mutants)
	if err != nil {
		return nil, err
	}
	led, err := openLedger(o.ledger, sources)
	if err == nil && o.fresh {
		clear(led.times)
	}
	return led, err
}

// labs counts the end-to-end tests of a mutant.
func labs(m mutation.Mutant) (n int) {
	for _, t := range m.Tests {
		if endsToEnd(t) {
			n++
		}
	}
	return n
}

// choose returns the mutants to run. The result may be empty only if a revision is given.
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

// summary prints outcomes as they arrive, and counts them.
type summary struct {
	out   io.Writer
	start time.Time

	mu                       sync.Mutex
	killed, survived, broken []string
	before                   int
	times                    []timed
}

// timed is the duration of a mutant's run.
type timed struct {
	name string
	took time.Duration
}

// addBefore counts a mutant killed in an earlier run.
func (s *summary) addBefore(m mutation.Mutant, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before++
	s.killed, s.times = append(s.killed, m.Name), append(s.times, timed{m.Name, took})
}

func (s *summary) add(o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, took := o.mutant.Name, o.took.Round(100*time.Millisecond)
	s.times = append(s.times, timed{name, o.took})
	switch {
	case o.broken != nil:
		s.broken = append(s.broken, name)
		fmt.Fprintf(s.out, "broken    %s (%s): %s\n", name, took, o.broken)
	case o.survived != nil:
		s.survived = append(s.survived, name)
		fmt.Fprintf(s.out, "SURVIVED  %s (%s): %s\n", name, took, o.mutant.Summary)
		for _, f := range o.survived {
			fmt.Fprintf(s.out, "    %s passes all the same:\n%s\n", f.test, f.output)
		}
	default:
		s.killed = append(s.killed, name)
		fmt.Fprintf(s.out, "killed    %s (%s) by %s\n", name, took, names(o.mutant.Tests))
	}
}

// close prints the closing lines and returns the exit status for total mutants.
func (s *summary) close(total int) int {
	tried := len(s.killed) + len(s.survived) + len(s.broken)
	fmt.Fprintf(s.out, "\n%d mutants in %s: %d killed, %d survived, %d broken, %d not tried\n",
		total, time.Since(s.start).Round(time.Second), len(s.killed), len(s.survived), len(s.broken), total-tried)
	if s.before > 0 {
		fmt.Fprintf(s.out, "%d of these were killed by an earlier run, with the same sources\n", s.before)
	}
	s.printTimes()
	if len(s.survived) > 0 {
		fmt.Fprintln(s.out, "survived:", strings.Join(s.survived, " "))
	}
	if len(s.broken) > 0 {
		fmt.Fprintln(s.out, "broken:", strings.Join(s.broken, " "))
	}
	if len(s.killed) < total {
		return 1
	}
	return 0
}

// printTimes prints the sum of the mutants' times, their median, and the slowest.
func (s *summary) printTimes() {
	if len(s.times) == 0 {
		return
	}
	slices.SortFunc(s.times, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	var sum time.Duration
	for _, t := range s.times {
		sum += t.took
	}
	fmt.Fprintf(s.out, "together %s, median %s, slowest:", sum.Round(time.Second), s.times[len(s.times)/2].took.Round(100*time.Millisecond))
	for _, t := range s.times[:min(5, len(s.times))] {
		fmt.Fprintf(s.out, " %s %s", t.name, t.took.Round(100*time.Millisecond))
	}
	fmt.Fprintln(s.out)
}
