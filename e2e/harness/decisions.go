package harness

import (
	"context"
	"encoding/json"
	"net/netip"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/policy"
)

// Events are the decisions about a box so far.
func (w *World) Events(box string) []audit.Event {
	w.T.Helper()
	var events []audit.Event
	err := w.Client.Lines(w.T.Context(), api.BoxPath(box, "egress"), func(line []byte) error {
		var e audit.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		events = append(events, e)
		return nil
	})
	if err != nil {
		w.T.Fatal(err)
	}
	return events
}

// Event waits for a decision about a box that match selects.
func (w *World) Event(box string, match func(audit.Event) bool) audit.Event {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), 10*time.Second)
	defer cancel()
	for {
		events := w.Events(box)
		for _, e := range events {
			if match(e) {
				return e
			}
		}
		select {
		case <-ctx.Done():
			for _, e := range events {
				w.T.Logf("decision: %s", audit.Line(e))
			}
			w.T.Fatal("the decision was not logged")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Denial waits for a denying decision about an address; port 0 is any port.
func (w *World) Denial(box string, stage policy.Stage, to netip.Addr, port uint16, reason policy.Reason) audit.Event {
	w.T.Helper()
	e := w.Event(box, func(e audit.Event) bool { return e.Stage == stage && e.Addr == to && (port == 0 || e.Port == port) })
	if e.Verdict != policy.Deny || e.Reason != reason {
		w.T.Errorf("%v port %d: want %s, decision: %s", to, port, reason, audit.Line(e))
	}
	return e
}

// DenialOf waits for a denying decision about a name.
func (w *World) DenialOf(box string, stage policy.Stage, name string, reason policy.Reason) audit.Event {
	w.T.Helper()
	return w.Event(box, func(e audit.Event) bool {
		return e.Stage == stage && e.Name == name && e.Verdict == policy.Deny && e.Reason == reason
	})
}
