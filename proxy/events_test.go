package proxy

import (
	"slices"
	"sync"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
)

// events keeps what was decided.
type events struct {
	mu   sync.Mutex
	all  []audit.Event
	more chan struct{}
}

func (e *events) Record(ev audit.Event) {
	e.mu.Lock()
	e.all = append(e.all, ev)
	e.mu.Unlock()
	select {
	case e.more <- struct{}{}:
	default:
	}
}

// wait returns the events of requests once there are n: neither those of connections, nor those of phase open, which are
// recorded only for what lasts.
func (e *events) wait(t testing.TB, n int) []audit.Event {
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
			t.Fatalf("%d events of requests, want %d; there are %+v", len(got), n, e.list())
		}
	}
}

func (e *events) list() []audit.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

// want waits for an event that matches, and returns it.
func (r *rig) want(what string, is func(audit.Event) bool) audit.Event {
	r.t.Helper()
	limit := time.After(time.Minute)
	for {
		r.events.mu.Lock()
		i := slices.IndexFunc(r.events.all, is)
		seen := slices.Clone(r.events.all)
		r.events.mu.Unlock()
		if i >= 0 {
			return seen[i]
		}
		select {
		case <-r.events.more:
		case <-limit:
			r.t.Fatalf("no event: %s; there are %+v", what, seen)
		}
	}
}

// wantReason waits for an event with the reason.
func (r *rig) wantReason(reason policy.Reason) audit.Event {
	r.t.Helper()
	return r.want(string(reason), func(e audit.Event) bool { return e.Reason == reason })
}

// discardEvents is for benchmarks.
type discardEvents struct{}

func (discardEvents) Record(audit.Event) {}
