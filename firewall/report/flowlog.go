package report

import (
	"encoding/hex"

	"github.com/mdlayher/netlink"

	"boxgate/audit"
	"boxgate/firewall/flow"
	"boxgate/firewall/network"
	"boxgate/policy"
	"boxgate/policy/name"
)

// recordFlowEvent records two events for a forwarded connection: one when it begins, one with bytes and duration when it has ended.
// The recorder decides which of them are logged separately.
func (r *Reports) recordFlowEvent(m netlink.Message) {
	if c, phase := decodeFlow(m); phase != "" {
		r.recordFlow(&c, phase)
	}
}

// recordFlow records the event of a connection, if it belongs to a box.
func (r *Reports) recordFlow(c *flow.Entry, phase audit.Phase) {
	if c.Protocol == "" || c.Mark&network.FlowForwarded == 0 {
		return
	}
	r.mu.Lock()
	t := r.byFlow[c.Owner()]
	r.mu.Unlock()
	if t == nil {
		return
	}
	e := t.event()
	e.Protocol, e.Addr, e.Port = c.Protocol, c.Dst.Addr(), c.Dst.Port()
	e.Verdict, e.Action = policy.Allow, audit.ActionKernel
	e.Phase, e.Conn = phase, connName(c.ID)
	e.Answered = c.Status&flow.Assured != 0
	switch phase {
	case audit.PhaseOpen:
		if e.Protocol == policy.TCP {
			r.started.Add(1)
		}
	case audit.PhaseOngoing:
		if start := c.Start; !start.IsZero() {
			e.Time = start
		}
	case audit.PhaseEnd:
		e.BytesOut, e.BytesIn = int64(c.Orig.Bytes), int64(c.Reply.Bytes)
		if start, stop := c.Start, c.Stop; !start.IsZero() && stop.After(start) {
			e.Duration = stop.Sub(start)
		}
	}
	r.cfg.Audit.Record(r.withAllowance(e))
}

// connName identifies the connection in its events.
func connName(id uint32) string {
	text := make([]byte, 0, 10)
	return string(hex.AppendEncode(append(text, "ct"...), []byte{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}))
}

// withAllowance adds why the connection was allowed, by the current policy: the policy under which it began may be gone.
func (r *Reports) withAllowance(e audit.Event) audit.Event {
	e.Reason = name.ReasonNotDenied
	if d, ok := r.explain(e); ok && d.Allowed() {
		e.Reason, e.Rule, e.Version = d.Reason, d.Rule, d.Version
	} else if ok && e.Phase == audit.PhaseEnd {
		e.Reason = name.ReasonPolicyChanged
	}
	return e
}
