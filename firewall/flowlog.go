package firewall

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"

	"boxgate/audit"
	"boxgate/policy"
)

// flow records two events for a connection that the kernel forwards: one when it begins, one with bytes and duration
// when it has ended. A box that is too busy for that gets one event a second that stands for the rest, see tally.
func (r *reports) flow(m netlink.Message) {
	var ev conntrack.Event
	if err := ev.Unmarshal(m); err != nil || ev.Flow == nil || ev.Flow.Mark&flowForwarded == 0 {
		return
	}
	if ev.Type != conntrack.EventNew && ev.Type != conntrack.EventDestroy {
		return
	}
	seen, ok := flowOf(ev.Flow)
	if !ok {
		return
	}
	r.mu.Lock()
	t := r.byAddr[seen.Src.Addr()]
	r.mu.Unlock()
	if t == nil || t.mark|flowForwarded != ev.Flow.Mark {
		return
	}
	e := t.event()
	e.Protocol, e.Addr, e.Port = seen.Protocol, seen.Dst.Addr(), seen.Dst.Port()
	e.Verdict, e.Action = policy.Allow, audit.ActionKernel
	e.Phase, e.Conn = audit.PhaseOpen, fmt.Sprintf("ct%08x", ev.Flow.ID)
	if ev.Type == conntrack.EventDestroy {
		e.Phase = audit.PhaseEnd
		e.BytesOut = int64(ev.Flow.CountersOrig.Bytes)
		e.BytesIn = int64(ev.Flow.CountersReply.Bytes)
		if start, stop := ev.Flow.Timestamp.Start, ev.Flow.Timestamp.Stop; !start.IsZero() && stop.After(start) {
			e.Duration = stop.Sub(start)
		}
	}
	if r.tally(tallyKey{t.id, ev.Type == conntrack.EventDestroy}, e) {
		r.cfg.Audit.Record(r.withAllowance(e))
	}
}

// withAllowance says why the connection was allowed, by the policy of now: the one under which it began may be gone.
func (r *reports) withAllowance(e audit.Event) audit.Event {
	e.Reason = policy.ReasonNotDenied
	if d, ok := r.explain(e); ok && d.Allowed() {
		e.Reason, e.Rule, e.Version = d.Reason, d.Rule, d.Version
	} else if ok && e.Phase == audit.PhaseEnd {
		e.Reason = policy.ReasonPolicyChanged
	}
	return e
}

// flowEventsPerSecond is how many beginnings of connections are recorded one by one for each box in a second, and how many
// ends: a box opens tens of thousands a second without effort.
const flowEventsPerSecond = 100

// tallyKey names what is counted apart: a box's beginnings, and its ends.
type tallyKey struct {
	box   policy.BoxID
	ended bool
}

// tally is the second under way.
type tally struct {
	told int         // events recorded one by one
	rest audit.Event // the latest of those that were not, with their number and the sum of their bytes
}

// tally reports whether the event is to be recorded by itself. If not, it is counted.
func (r *reports) tally(k tallyKey, e audit.Event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tallies[k]
	if t == nil {
		t = &tally{}
		r.tallies[k] = t
	}
	if t.told < flowEventsPerSecond {
		t.told++
		return true
	}
	e.Conn = "" // of many
	e.Count, e.BytesIn, e.BytesOut = t.rest.Count+1, t.rest.BytesIn+e.BytesIn, t.rest.BytesOut+e.BytesOut
	t.rest = e
	return false
}

// endSecond records what was only counted, and begins to count anew.
func (r *reports) endSecond() {
	r.mu.Lock()
	past := r.tallies
	r.tallies = map[tallyKey]*tally{}
	r.mu.Unlock()
	for _, t := range past {
		if t.rest.Count > 0 {
			r.cfg.Audit.Record(r.withAllowance(t.rest))
		}
	}
}
