package firewall

import (
	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"

	"boxgate/audit"
	"boxgate/policy"
)

// flow records two events for a connection that the kernel forwards: one when it begins, one with bytes and duration
// when it has ended.
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
	if ev.Type == conntrack.EventDestroy {
		e.BytesOut = int64(ev.Flow.CountersOrig.Bytes)
		e.BytesIn = int64(ev.Flow.CountersReply.Bytes)
		if start, stop := ev.Flow.Timestamp.Start, ev.Flow.Timestamp.Stop; !start.IsZero() && stop.After(start) {
			e.Duration = stop.Sub(start)
		}
	}
	r.cfg.Audit.Record(r.withAllowance(e))
}

// withAllowance says why the connection was allowed, by the policy of now: the one under which it began may be gone.
func (r *reports) withAllowance(e audit.Event) audit.Event {
	e.Reason = policy.ReasonNotDenied
	if d, ok := r.explain(e); ok && d.Allowed() {
		e.Reason, e.Rule, e.Version = d.Reason, d.Rule, d.Version
	} else if ok && e.Duration > 0 {
		e.Reason = policy.ReasonPolicyChanged
	}
	return e
}
