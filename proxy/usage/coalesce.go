package usage

import (
	"net/netip"
	"sync"
	"time"

	"boxgate/audit"
)

// coalesceInterval is the least time between two events of one [Coalescer].
const coalesceInterval = time.Second

// Coalescer records the first of many like events at once and then one each coalesceInterval, which says how many it stands
// for. Every event is counted in the end. Only Record must be set.
type Coalescer struct {
	Record func(audit.Event) // never blocks

	mu     sync.Mutex
	timer  *time.Timer // runs while the latest record is younger than coalesceInterval
	latest audit.Event
	unsaid uint64 // events since the latest record
	mixed  bool   // they are not all about one destination
}

// Add records ev, or keeps it until its time has come.
func (t *Coalescer) Add(ev audit.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unsaid > 0 && (ev.Name != t.latest.Name || ev.Addr != t.latest.Addr || ev.Port != t.latest.Port) {
		t.mixed = true
	}
	t.latest = ev
	t.unsaid++
	if t.timer == nil {
		t.sayLocked()
		t.timer = time.AfterFunc(coalesceInterval, t.due)
	}
}

// due records what came while the timer ran, and lets it run again if anything did.
func (t *Coalescer) due() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer = nil; t.sayLocked() {
		t.timer = time.AfterFunc(coalesceInterval, t.due)
	}
}

// Flush records what was not said yet and lets no timer run on.
func (t *Coalescer) Flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	t.sayLocked()
}

func (t *Coalescer) sayLocked() bool {
	if t.unsaid == 0 {
		return false
	}
	ev := t.latest
	if t.unsaid > 1 {
		ev.Count = t.unsaid
	}
	if t.mixed {
		ev.Name, ev.Addr, ev.Port, ev.Rule = "", netip.Addr{}, 0, ""
		ev.Error = "refusals of several destinations, told by their number"
	}
	t.unsaid, t.mixed = 0, false
	t.Record(ev)
	return true
}
