package proxy

import (
	"slices"
	"sync"
	"testing"
	"time"

	"boxgate/audit"
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

// wait returns all events once there are n. Those of phase open are left out: whether there is one is a matter of speed.
func (e *events) wait(t testing.TB, n int) []audit.Event {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		e.mu.Lock()
		got := slices.DeleteFunc(slices.Clone(e.all), func(e audit.Event) bool { return e.Phase == audit.PhaseOpen })
		e.mu.Unlock()
		if len(got) >= n {
			return got
		}
		select {
		case <-e.more:
		case <-limit:
			t.Fatalf("%d events, want %d: %+v", len(got), n, got)
		}
	}
}

// discardEvents is for benchmarks.
type discardEvents struct{}

func (discardEvents) Record(audit.Event) {}
