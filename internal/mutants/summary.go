package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// summary prints outcomes as they come, and counts them.
type summary struct {
	out   io.Writer
	begun time.Time

	mu                       sync.Mutex
	killed, survived, broken []string
}

func (s *summary) add(o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, took := o.mutant.Name, o.took.Round(100*time.Millisecond)
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
		total, time.Since(s.begun).Round(time.Second), len(s.killed), len(s.survived), len(s.broken), total-tried)
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
