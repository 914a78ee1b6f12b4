package replay

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"boxgate/observe"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Bounds of a [Result].
const (
	maxLines    = 100 // of each list
	maxExamples = 4   // of a line
)

// Outcome is a decision in a [Line].
type Outcome struct {
	Verdict policy.Verdict `json:"verdict"`
	Reason  name.Reason    `json:"reason"`
	Rule    string         `json:"rule,omitempty"`
}

// Line is an observation on which the policies differ, or that cannot be replayed.
type Line struct {
	Stage    policy.Stage    `json:"stage"`
	Protocol policy.Protocol `json:"protocol,omitempty"`
	Name     string          `json:"name,omitempty"`
	Addr     netip.Addr      `json:"addr,omitzero"`
	Port     uint16          `json:"port,omitempty"`
	Method   string          `json:"method,omitempty"`
	Shape    string          `json:"shape,omitempty" doc:"of the path"`
	Count    uint64          `json:"count" doc:"decisions that were taken"`
	Last     time.Time       `json:"last_seen"`
	Recorded policy.Verdict  `json:"recorded" doc:"the verdict that was given"`
	Before   *Outcome        `json:"before,omitempty" doc:"by the policy in force"`
	After    *Outcome        `json:"after,omitempty" doc:"by the candidate"`
	Opened   []string        `json:"opened,omitempty" doc:"examples that the candidate alone allows: paths, or addresses"`
	Closed   []string        `json:"closed,omitempty" doc:"examples that the policy in force alone allows"`
	Judged   bool            `json:"requests_judged,omitempty" doc:"only the connection is allowed: rules would judge its requests, which are unknown"`
	ByName   bool            `json:"name_only,omitempty" doc:"the name was not looked up: its addresses, which the candidate judges as well, are unknown"`
	Assumed  bool            `json:"name_assumed,omitempty" doc:"the name is that of a DNS answer with the address; a client could send another"`
	Unknown  Why             `json:"unknown,omitempty" doc:"why some of it, or all, cannot be replayed"`
}

// Lines are lines with their number of decisions.
type Lines struct {
	Count uint64 `json:"count" doc:"decisions in all lines"`
	Lines []Line `json:"lines" doc:"those with most decisions first, at most 100"`
	More  int    `json:"more,omitempty" doc:"lines beyond these"`
}

func (l *Lines) add(line Line) {
	l.Count += line.Count
	l.Lines = append(l.Lines, line)
}

// cut sorts the lines and drops those beyond the bound.
func (l *Lines) cut() {
	slices.SortStableFunc(l.Lines, func(a, b Line) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name), a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Shape, b.Shape))
	})
	if n := len(l.Lines) - maxLines; n > 0 {
		l.Lines, l.More = l.Lines[:maxLines], n
	}
	if l.Lines == nil {
		l.Lines = []Line{}
	}
}

// Total is a number of decisions and of observations.
type Total struct {
	Count        uint64 `json:"count" doc:"decisions"`
	Observations int    `json:"observations"`
}

func (t *Total) add(count uint64) {
	t.Count += count
	t.Observations++
}

// Control compares the policy in force with the verdicts that it gave. It covers the observations of its version.
type Control struct {
	Reproduced Total `json:"reproduced"`
	Different  Total `json:"different" doc:"not used, and counted among the unknown"`
}

// Result is the difference between two policies on the traffic of a box.
type Result struct {
	Seen    Total         `json:"seen" doc:"all that was replayed or is unknown"`
	Allowed Total         `json:"still_allowed"`
	Denied  Total         `json:"still_denied"`
	Mixed   Total         `json:"unchanged_mixed" doc:"some of it is denied and some allowed, by both alike"`
	Opens   Lines         `json:"opens" doc:"denied by the policy in force, allowed by the candidate"`
	Closes  Lines         `json:"closes" doc:"allowed by the policy in force, denied by the candidate"`
	Partly  Lines         `json:"partly" doc:"the candidate changes some of it: the decisions of a line cannot be divided"`
	Unknown Lines         `json:"unknown" doc:"cannot be replayed"`
	Reasons map[Why]Total `json:"unknown_by_reason"`
	Control Control       `json:"control"`
}

// Run replays the observations last seen at or after since. Both policies must be compiled with all inputs of the box, as the
// decisions were. What is not replayed when ctx ends is counted as unknown.
func Run(ctx context.Context, before, after *policy.Compiled, list []observe.Observation, since time.Time) Result {
	r := Result{Reasons: map[Why]Total{}}
	for i := range list {
		o := &list[i]
		if o.Last.Before(since) {
			continue
		}
		r.Seen.add(o.Count)
		switch why := unasked(o); {
		case ctx.Err() != nil:
			r.unknown(o, WhyTime)
		case why != "":
			r.unknown(o, why)
		default:
			r.replay(before, after, o)
		}
	}
	for _, l := range []*Lines{&r.Opens, &r.Closes, &r.Partly, &r.Unknown} {
		l.cut()
	}
	return r
}

func (r *Result) unknown(o *observe.Observation, why Why) {
	line := lineOf(o)
	line.Unknown = why
	r.Unknown.add(line)
	t := r.Reasons[why]
	t.add(o.Count)
	r.Reasons[why] = t
}

func lineOf(o *observe.Observation) Line {
	return Line{Stage: o.Stage, Protocol: o.Protocol, Name: o.Name, Addr: o.Addr, Port: o.Port, Method: o.Method, Shape: o.Shape, Count: o.Count,
		Last: o.Last, Recorded: o.Verdict}
}

// replay asks both policies about every example of an observation.
func (r *Result) replay(before, after *policy.Compiled, o *observe.Observation) {
	line := lineOf(o)
	same, alike := true, true // no example changes; all examples are decided alike
	var first *[2]answer      // of the first example that both policies decide
	for _, x := range examplesOf(before, after, o) {
		was, is := ask(before, o, x), ask(after, o, x)
		if was.why == "" && was.Verdict != o.Verdict && o.Version == before.Version() {
			r.Control.Different.add(o.Count)
			r.unknown(o, WhyControl)
			return
		}
		if why := cmp.Or(was.why, is.why); why != "" {
			line.Unknown = cmp.Or(line.Unknown, why)
			continue
		}
		if first == nil {
			first = &[2]answer{was, is}
		}
		alike = alike && was.sameAs(&first[0]) && is.sameAs(&first[1])
		if was.Verdict != is.Verdict {
			same = false
			line.change(o, x, &was, &is)
		}
	}
	if o.Version == before.Version() && line.Unknown == "" {
		r.Control.Reproduced.add(o.Count)
	}
	switch {
	case same && line.Unknown != "":
		r.unknown(o, line.Unknown)
	case same && alike && first[0].Allowed():
		r.Allowed.add(o.Count)
	case same && alike:
		r.Denied.add(o.Count)
	case same: // some examples are allowed, and stay so
		r.Mixed.add(o.Count)
	case !alike || line.Unknown != "":
		r.Partly.add(line)
	case first[1].Allowed():
		r.Opens.add(line)
	default:
		r.Closes.add(line)
	}
}

// change adds an example that the candidate decides differently.
func (l *Line) change(o *observe.Observation, x example, was, is *answer) {
	if is.Allowed() {
		note(&l.Opened, o, x)
		l.Judged, l.Assumed, l.ByName = l.Judged || is.judged, l.Assumed || is.assumed, l.ByName || is.unresolved
	} else {
		note(&l.Closed, o, x)
	}
	l.Before, l.After = outcome(was), outcome(is)
}

func outcome(a *answer) *Outcome { return &Outcome{a.Verdict, a.Reason, a.Rule} }

// note adds an example to a line.
func note(to *[]string, o *observe.Observation, x example) {
	text := x.path
	if x.query != "" {
		text += "?" + x.query
	}
	if text == "" && len(o.Addrs) > 1 {
		text = x.addr.String()
	}
	if text != "" && len(*to) < maxExamples && !slices.Contains(*to, text) {
		*to = append(*to, text)
	}
}

// examplesOf returns the examples of an observation that some of the policies may decide differently. There is at least one.
func examplesOf(before, after *policy.Compiled, o *observe.Observation) []example {
	addrs, paths, queries := o.Addrs, o.Paths, []string{""}
	var beyond []Why
	if o.Addr.IsValid() {
		addrs = []netip.Addr{o.Addr}
	}
	if o.MoreAddr && (before.JudgesAddresses() || after.JudgesAddresses()) {
		beyond = append(beyond, WhyAddress)
	}
	if o.Stage == policy.StageHTTP {
		j := judging(before, after, o)
		switch {
		case !j.Rules && len(paths) > 1:
			paths = paths[:1]
		case j.Rules && o.More && (j.Path || hidesPath(o.Shape)):
			beyond = append(beyond, WhyPaths)
		}
		if j.Query {
			if queries = o.Queries; o.MoreQuery || len(queries) == 0 {
				beyond = append(beyond, WhyQuery)
			}
		}
	}
	return product(addrs, paths, queries, beyond)
}

// product returns an example for each combination, and one for each reason why there are others.
func product(addrs []netip.Addr, paths, queries []string, beyond []Why) (list []example) {
	if len(addrs) == 0 {
		addrs = []netip.Addr{{}}
	}
	if len(paths) == 0 {
		paths = []string{""}
	}
	for _, a := range addrs {
		for _, p := range paths {
			for _, q := range queries {
				list = append(list, example{addr: a, path: p, query: q})
			}
		}
	}
	for _, why := range beyond {
		list = append(list, example{why: why})
	}
	return list
}

// judging returns what decides about the requests of an observation by either policy.
func judging(before, after *policy.Compiled, o *observe.Observation) policy.Judging {
	n, err := name.Parse(o.Name)
	if err != nil {
		n = name.Name{}
	}
	a, b := before.Judges(n, o.Port), after.Judges(n, o.Port)
	return policy.Judging{Rules: a.Rules || b.Rules, Path: a.Path || b.Path, Query: a.Query || b.Query}
}

// hidesPath reports whether a path with the shape may be one that servers interpret differently.
func hidesPath(shape string) bool {
	return strings.Contains(shape, "{id}") || strings.HasSuffix(shape, "/...")
}

// SchemaName is the name in the description of the API.
func (Line) SchemaName() string { return "ReplayLine" }

// SchemaName is the name in the description of the API.
func (Lines) SchemaName() string { return "ReplayLines" }

// SchemaName is the name in the description of the API.
func (Total) SchemaName() string { return "ReplayTotal" }

// SchemaName is the name in the description of the API.
func (Control) SchemaName() string { return "ReplayControl" }

// SchemaName is the name in the description of the API.
func (Outcome) SchemaName() string { return "ReplayOutcome" }

// SchemaName is the name in the description of the API.
func (Result) SchemaName() string { return "ReplayedTraffic" }
