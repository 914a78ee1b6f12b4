package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/internal/mutants/mutation"
)

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
