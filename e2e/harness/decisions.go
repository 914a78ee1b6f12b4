package harness

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Events returns the decisions about a box so far.
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

// Event waits for a decision about a box that satisfies match.
func (w *World) Event(box string, match func(audit.Event) bool) audit.Event {
	w.T.Helper()
	e, seen, ok := w.await(box, match)
	if !ok {
		for _, e := range seen {
			w.T.Logf("decision: %s", audit.Line(e))
		}
		w.T.Fatal("the decision was not logged")
	}
	return e
}

// await follows the decisions about a box, starting with the recorded ones, until one matches. If none matches in time,
// it returns the decisions it has seen.
func (w *World) await(box string, match func(audit.Event) bool) (found audit.Event, seen []audit.Event, ok bool) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), w.patience())
	defer cancel()
	errEnough := errors.New("enough has been read")
	for {
		seen = nil
		err := w.Client.Lines(ctx, api.BoxPath(box, "egress")+"?follow=true", func(line []byte) error {
			var e audit.Event
			if err := json.Unmarshal(line, &e); err != nil {
				return err
			}
			if e.Seq == 0 { // this reader was too slow and missed events; the gateway still has them
				return errEnough
			}
			seen = append(seen, e)
			if match(e) {
				found, ok = e, true
				return errEnough
			}
			return nil
		})
		switch {
		case ok:
			return found, seen, true
		case ctx.Err() != nil:
			w.failed.Store(true)
			return found, seen, false
		case err != nil && !errors.Is(err, errEnough):
			w.T.Fatal(err)
		}
	}
}

// Denied waits for a denial with the reason, recorded at the stage after the given time.
func (in *Intruder) Denied(since time.Time, stage policy.Stage, reason name.Reason) audit.Event {
	in.T.Helper()
	e, seen, ok := in.await(in.Box, func(e audit.Event) bool {
		return !e.Time.Before(since) && e.Stage == stage && e.Verdict == policy.Deny && e.Reason == reason
	})
	if ok {
		return e
	}
	in.T.Errorf("no decision at stage %s has the reason %s", stage, reason)
	for _, e := range seen {
		if !e.Time.Before(since) {
			in.T.Logf("decision: %s", audit.Line(e))
		}
	}
	return audit.Event{}
}

// Denial waits for a denial of an address. Port 0 means any port.
func (w *World) Denial(box string, stage policy.Stage, to netip.Addr, port uint16, reason name.Reason) audit.Event {
	w.T.Helper()
	e := w.Event(box, func(e audit.Event) bool { return e.Stage == stage && e.Addr == to && (port == 0 || e.Port == port) })
	if e.Verdict != policy.Deny || e.Reason != reason {
		w.T.Errorf("%v port %d: want %s, decision: %s", to, port, reason, audit.Line(e))
	}
	return e
}

// DenialOf waits for a denial of a name.
func (w *World) DenialOf(box string, stage policy.Stage, name string, reason name.Reason) audit.Event {
	w.T.Helper()
	return w.Event(box, func(e audit.Event) bool {
		return e.Stage == stage && e.Name == name && e.Verdict == policy.Deny && e.Reason == reason
	})
}
