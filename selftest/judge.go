package selftest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/selftest/probe"
	"boxgate/selftest/watch"
)

// Verdict is the outcome of one attack. The zero value is [NotRun].
type Verdict uint8

// The verdicts.
const (
	NotRun  Verdict = iota // outcome unknown
	Tight                  // refused as the policy promises, and logged
	Hole                   // traffic got through, or the refusal was not the promised one
	Skipped                // not applicable to this policy, which allows it or has no such rule
)

// String returns the word of the scorecard.
func (v Verdict) String() string {
	switch v {
	case Tight:
		return "tight"
	case Hole:
		return "hole"
	case Skipped:
		return "skipped"
	default:
		return "not_run"
	}
}

// Line is one attack over one address family.
type Line struct {
	Group    string
	Attack   string
	Family   string // "ipv4" or "ipv6"
	Target   string
	Expected string // the promise of the active policy
	Seen     string // the answer that the box received, and the logged decision
	Verdict  Verdict
	Why      string // for every verdict but Tight
}

// Card is the outcome of a run.
type Card struct {
	Mode     policy.Mode
	Version  uint64 // of the policy that was tested
	Started  time.Time
	Duration time.Duration
	Lines    []Line
}

// judge holds the results of a run.
type judge struct {
	answers   map[int]probe.Answer
	sightings []watch.Sighting
	missed    int // packets that the watch of the host's interfaces missed
	logged    map[int]audit.Event
}

// line returns the verdict on one attack. It looks for traffic that got through first, because a logged decision does
// not make up for that.
func (j *judge) line(a *attack) Line {
	l := a.Line
	if l.Verdict == Skipped {
		return l
	}
	r, ok := j.answers[a.task.ID]
	if !ok || r.Outcome == probe.Failed {
		l.Verdict, l.Why = NotRun, "it could not be sent"
		if r.Error != "" {
			l.Why += ": " + r.Error
		}
		return l
	}
	read := a.judge
	if read == nil {
		read = refusedAtOnce
	}
	seen, hole := read(r)
	l.Seen = seen
	event, isLogged := j.logged[a.task.ID]
	if isLogged {
		l.Seen += ", logged " + string(event.Reason)
	}
	if a.inspect != nil {
		l.Seen, hole = a.inspect()
	}
	switch leak, leaked := j.leak(a); {
	case leaked:
		l.Verdict, l.Why = Hole, leak
	case a.canary != nil && a.canary.Reached(a.task.Kind == probe.TCP):
		l.Verdict, l.Why = Hole, "it arrived at the listener on "+a.task.To.String()
	case hole:
		l.Verdict, l.Why = Hole, "it was answered"
		if a.inspect != nil {
			l.Why = l.Seen
		}
	case len(a.reasons) > 0 && !isLogged:
		l.Verdict, l.Why = Hole, "no decision was logged"
	case len(a.reasons) > 0 && !slices.Contains(a.reasons, event.Reason):
		l.Verdict, l.Why = Hole, wrongReason(a.reasons[0], event.Reason)
	case j.missed > 0:
		l.Verdict, l.Why = NotRun, fmt.Sprintf("%d packets on the host's interfaces came too fast to be inspected", j.missed)
	default:
		l.Verdict = Tight
	}
	return l
}

func wrongReason(want, got name.Reason) string {
	return fmt.Sprintf("refused, but not for %s: that rule does not stand, and %s stood behind it", want, got)
}

// leak looks for a packet of the attack on an interface where none is allowed.
func (j *judge) leak(a *attack) (string, bool) {
	for _, s := range j.sightings {
		atTarget := s.To.Addr().Unmap() == a.to.Addr().Unmap()
		switch {
		case s.Task == a.task.ID && (!a.anyTarget || atTarget):
		case s.First.IsValid() && a.task.Kind == probe.TCP && s.First == a.task.To:
		case a.exclusive && atTarget:
		default:
			continue
		}
		if s.To.Port() == 0 {
			return fmt.Sprintf("a packet left by %s to %v", watch.LinkName(s.Link), s.To.Addr()), true
		}
		return fmt.Sprintf("a packet left by %s to %v", watch.LinkName(s.Link), s.To), true
	}
	return "", false
}

// decisions collects the decisions about the box during a run.
type decisions struct {
	mu      sync.Mutex
	events  []audit.Event
	changed chan struct{} // closed and replaced by every event
}

// follow collects until the channel is closed.
func follow(events <-chan audit.Event) *decisions {
	d := &decisions{changed: make(chan struct{})}
	go func() {
		for e := range events {
			d.mu.Lock()
			d.events = append(d.events, e)
			close(d.changed)
			d.changed = make(chan struct{})
			d.mu.Unlock()
		}
	}()
	return d
}

// await returns when every expected decision has been logged, but no later than after most.
func (d *decisions) await(ctx context.Context, attacks []*attack, most time.Duration) {
	late := time.After(most)
	for {
		d.mu.Lock()
		changed := d.changed
		d.mu.Unlock()
		if d.complete(attacks) {
			return
		}
		select {
		case <-changed:
		case <-late:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (d *decisions) complete(attacks []*attack) bool {
	claims := d.assign(attacks)
	return !slices.ContainsFunc(attacks, func(a *attack) bool {
		return a.Verdict != Skipped && len(a.reasons) > 0 && !slices.Contains(a.reasons, claims[a.task.ID].Reason)
	})
}

// assign finds a decision for each attack, preferring one with a promised reason. A decision counts for one attack
// only. The exception are decisions that the kernel only counted because too many came together: they count for that
// many attacks.
func (d *decisions) assign(attacks []*attack) map[int]audit.Event {
	d.mu.Lock()
	left := slices.DeleteFunc(slices.Clone(d.events), func(e audit.Event) bool { return e.Verdict == policy.Allow })
	d.mu.Unlock()
	claimed := map[int]audit.Event{}
	claim := func(fits func(a *attack, e audit.Event) bool) {
		for _, a := range attacks {
			if _, done := claimed[a.task.ID]; done || a.Verdict == Skipped || len(a.reasons) == 0 {
				continue
			}
			i := slices.IndexFunc(left, func(e audit.Event) bool { return fits(a, e) })
			if i < 0 {
				continue
			}
			claimed[a.task.ID] = left[i]
			if left[i].Count > 1 {
				left[i].Count--
			} else {
				left = slices.Delete(left, i, i+1)
			}
		}
	}
	promised := func(a *attack, e audit.Event) bool { return slices.Contains(a.reasons, e.Reason) }
	claim(func(a *attack, e audit.Event) bool { return e.Count == 0 && promised(a, e) && a.matches(e) })
	claim(func(a *attack, e audit.Event) bool { return e.Count > 0 && promised(a, e) })
	claim(func(a *attack, e audit.Event) bool { return e.Count == 0 && a.matches(e) })
	return claimed
}
