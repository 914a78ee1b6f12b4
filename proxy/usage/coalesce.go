package usage

import (
	"net/netip"
	"sync"
	"time"

	"boxgate/audit"
)

// coalesceInterval is the minimum time between two events of one [Coalescer].
const coalesceInterval = time.Second

// Coalescer records the first of many similar events immediately, then one per coalesceInterval with the number it
// represents. Every event is counted eventually. Only Record must be set.
type Coalescer struct {
	Record func(audit.Event) // never blocks

	mu         sync.Mutex
	timer      *time.Timer // runs while the latest record is younger than coalesceInterval
	latest     audit.Event
	unrecorded uint64 // events not recorded yet
	mixed      bool   // the unrecorded events have different destinations
}

// Add records ev, now or with those coalesced when the interval ends.
func (t *Coalescer) Add(ev audit.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unrecorded > 0 && (ev.Name != t.latest.Name || ev.Addr != t.latest.Addr || ev.Port != t.latest.Port) {
		t.mixed = true
	}
	t.latest = ev
	t.unrecorded++
	if t.timer == nil {
		t.recordLocked()
		t.timer = time.AfterFunc(coalesceInterval, t.onTimer)
	}
}

// onTimer records the events that arrived while the timer ran, and restarts the timer if there were any.
func (t *Coalescer) onTimer() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer = nil; t.recordLocked() {
		t.timer = time.AfterFunc(coalesceInterval, t.onTimer)
	}
}

// Flush records the pending events and stops the timer.
func (t *Coalescer) Flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	t.recordLocked()
}

func (t *Coalescer) recordLocked() bool {
	if t.unrecorded == 0 {
		return false
	}
	ev := t.latest
	if t.unrecorded > 1 {
		ev.Count = t.unrecorded
	}
	if t.mixed {
		ev.Name, ev.Addr, ev.Port, ev.Rule = "", netip.Addr{}, 0, ""
		ev.Error = "refusals of several destinations, reported by count"
	}
	t.unrecorded, t.mixed = 0, false
	t.Record(ev)
	return true
}
