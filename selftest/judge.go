package selftest

import (
	"fmt"
	"slices"

	"boxgate/audit"
	"boxgate/policy/name"

	"boxgate/selftest/probe"
	"boxgate/selftest/watch"
)

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
