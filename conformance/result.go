package conformance

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"boxgate/conformance/websocket"
)

// Outcomes of a case. Suites may add their own.
const (
	OK     = "OK"
	Failed = "FAILED"
)

// Result is the result of one case.
type Result struct {
	Case    string `json:"case"`             // number or name in the suite
	Title   string `json:"title,omitempty"`  // short description
	Outcome string `json:"outcome"`          // OK, FAILED, or another outcome of the suite
	Detail  string `json:"detail,omitempty"` // the reason why it is not OK
	Seen    string `json:"seen,omitempty"`   // the peer's behaviour, if several are OK
}

// Run is the result of one run of a suite.
type Run struct {
	Way     string // such as "direct" or "through the gateway"
	Results []Result
}

// Tally returns the number of each outcome, such as "145 OK, 1 FAILED".
func (r Run) Tally() string {
	count := map[string]int{}
	for _, c := range r.Results {
		count[c.Outcome]++
	}
	var words []string
	for o := range count {
		words = append(words, o)
	}
	slices.SortFunc(words, func(a, b string) int { return count[b] - count[a] })
	for i, o := range words {
		words[i] = fmt.Sprintf("%d %s", count[o], o)
	}
	return strings.Join(words, ", ")
}

// Except returns the results that are not OK.
func (r Run) Except() []Result {
	var out []Result
	for _, c := range r.Results {
		if c.Outcome != OK {
			out = append(out, c)
		}
	}
	return out
}

// Difference is a case whose result differs in the second run.
type Difference struct {
	First, Second Result // one is zero if the case was not in its run
}

// String describes the difference.
func (d Difference) String() string {
	name := d.First.Case
	if name == "" {
		name = d.Second.Case
	}
	return fmt.Sprintf("%s: %s %s%s, but %s %s%s", name,
		d.First.Outcome, d.First.Detail, d.First.Seen, d.Second.Outcome, d.Second.Detail, d.Second.Seen)
}

// Informational is the outcome of a case without a required behaviour.
const Informational = websocket.Informational

// Differences returns the cases whose Outcome or, unless the case is informational, Seen differs between two runs, in
// the order of the first.
func Differences(first, second Run) []Difference {
	rest := map[string]Result{}
	for _, c := range second.Results {
		rest[c.Case] = c
	}
	var out []Difference
	for _, a := range first.Results {
		b := rest[a.Case]
		delete(rest, a.Case)
		if a.Outcome != b.Outcome || a.Seen != b.Seen && a.Outcome != Informational {
			out = append(out, Difference{a, b})
		}
	}
	for _, b := range second.Results {
		if _, only := rest[b.Case]; only {
			out = append(out, Difference{Second: b})
		}
	}
	return out
}

// Table writes one line per run, then each case that is not OK in one of them.
func Table(w io.Writer, suite string, runs ...Run) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "%s\tcases\toutcome\n", suite)
	for _, r := range runs {
		fmt.Fprintf(t, "%s\t%d\t%s\n", r.Way, len(r.Results), r.Tally())
	}
	for _, r := range runs {
		for _, c := range r.Except() {
			fmt.Fprintf(t, "  %s\t%s\t%s %s: %s\n", r.Way, c.Outcome, c.Case, c.Title, oneLine(c.Detail+c.Seen))
		}
	}
	return t.Flush()
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
