package proxytest

import (
	"slices"
	"sync"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Events collects the events of a proxy.
type Events struct {
	mu   sync.Mutex
	all  []audit.Event
	more chan struct{}
}

// Record implements [proxy.Recorder].
func (e *Events) Record(ev audit.Event) {
	e.mu.Lock()
	e.all = append(e.all, ev)
	e.mu.Unlock()
	select {
	case e.more <- struct{}{}:
	default:
	}
}

// Wait waits for n events of requests and returns them, without events of connections and of phase open. The latter are
// recorded only for long requests.
func (e *Events) Wait(t testing.TB, n int) []audit.Event {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		e.mu.Lock()
		got := slices.DeleteFunc(slices.Clone(e.all), func(e audit.Event) bool {
			return e.Phase == audit.PhaseOpen || e.Stage == policy.StageConn
		})
		e.mu.Unlock()
		if len(got) >= n {
			return got
		}
		select {
		case <-e.more:
		case <-limit:
			t.Fatalf("%d events of requests, want %d; all events: %+v", len(got), n, e.List())
		}
	}
}

// List returns all events so far.
func (e *Events) List() []audit.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

// Want returns the first event that matches is, waiting for it.
func (r *Rig) Want(what string, is func(audit.Event) bool) audit.Event {
	r.T.Helper()
	limit := time.After(time.Minute)
	for {
		r.Events.mu.Lock()
		i := slices.IndexFunc(r.Events.all, is)
		seen := slices.Clone(r.Events.all)
		r.Events.mu.Unlock()
		if i >= 0 {
			return seen[i]
		}
		select {
		case <-r.Events.more:
		case <-limit:
			r.T.Fatalf("no event: %s; there are %+v", what, seen)
		}
	}
}

// WantReason waits for an event with the reason, ignoring events of phase open, which are recorded only for long traffic.
func (r *Rig) WantReason(reason name.Reason) audit.Event {
	r.T.Helper()
	return r.Want(string(reason), func(e audit.Event) bool { return e.Reason == reason && e.Phase != audit.PhaseOpen })
}

// DiscardEvents is a [proxy.Recorder] for benchmarks.
type DiscardEvents struct{}

// Record discards an event.
func (DiscardEvents) Record(audit.Event) {}
