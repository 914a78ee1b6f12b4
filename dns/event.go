package dns

import (
	"strconv"
	"time"

	"go.uber.org/zap"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// openEvent returns the event of a query that has not been parsed: a refusal.
func openEvent(v visit, transport policy.Protocol) audit.Event {
	ev := audit.Event{Time: v.arrived, Stage: policy.StageDNS, Protocol: transport, Action: audit.ActionRefuse, Reason: name.ReasonInternal}
	if v.box != nil {
		ev.Box = v.box.ID
	}
	return ev
}

// closeEvent records the event of a query whose answer is ready.
func (s *Server) closeEvent(v visit, ev *audit.Event) {
	ev.Duration = time.Since(ev.Time)
	s.record(v.usage, *ev)
}

// answerPanic answers a query whose handling panicked.
func (s *Server) answerPanic(ev *audit.Event, wire []byte) []byte {
	*ev = audit.Event{Time: ev.Time, Stage: ev.Stage, Protocol: ev.Protocol, Box: ev.Box, Name: ev.Name,
		Action: audit.ActionRefuse, Reason: name.ReasonInternal, Error: "fault of the gateway"}
	setRCode(ev, mdns.RcodeServerFailure)
	s.log.Error("panic while answering a DNS query", zap.Stack("stack"))
	return bareReply(wire, mdns.RcodeServerFailure)
}

// setRCode records the response code in the event.
func setRCode(ev *audit.Event, rcode int) {
	if rcode == mdns.RcodeSuccess {
		return
	}
	name, known := mdns.RcodeToString[rcode]
	if !known {
		name = strconv.Itoa(rcode)
	}
	ev.RCode = name
}

// setDecision copies a decision into the event.
func setDecision(ev *audit.Event, d policy.Decision) {
	ev.Verdict, ev.Reason, ev.Rule, ev.Version = d.Verdict, d.Reason, d.Rule, d.Version
}

// record passes the event to the audit log. Refusals that a box can provoke at line rate are coalesced.
func (s *Server) record(use *usage, ev audit.Event) {
	if ev.Reason == name.ReasonLimit || ev.Reason == name.ReasonUnknownBox {
		use.refusals.add(ev)
		return
	}
	s.audit.Record(ev)
}
