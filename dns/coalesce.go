package dns

import (
	"sync"
	"time"

	"boxgate/audit"
	"boxgate/internal/fault"
)

// coalesceInterval is the minimum time between two events about refusals of one box.
const coalesceInterval = time.Second

// coalesced records the first refusal immediately, and later ones in one event per coalesceInterval: the latest refusal, with
// the number of refusals. Each refusal is counted.
type coalesced struct {
	record func(audit.Event) // must not block

	mu      sync.Mutex
	timer   *time.Timer // nil if the last event is older than coalesceInterval
	latest  audit.Event
	pending uint64 // refusals since the last event
}

// add records ev, or counts it for the next event.
func (c *coalesced) add(ev audit.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = ev
	c.pending++
	if c.timer == nil {
		c.recordLocked()
		c.timer = time.AfterFunc(fault.Interval(coalesceInterval), c.endInterval)
	}
}

// endInterval records the pending refusals when the interval ends, and starts the next interval if there were any.
func (c *coalesced) endInterval() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = nil
	if c.pending > 0 {
		c.recordLocked()
		c.timer = time.AfterFunc(fault.Interval(coalesceInterval), c.endInterval)
	}
}

// flush records the pending refusals without waiting for the interval to end.
func (c *coalesced) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if c.pending > 0 {
		c.recordLocked()
	}
}

func (c *coalesced) recordLocked() {
	ev := c.latest
	ev.Count, c.pending = c.pending, 0
	c.record(ev)
}
