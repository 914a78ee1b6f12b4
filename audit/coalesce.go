package audit

import (
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

// coalesceInterval is the least time between two events that stand for the same thing.
const coalesceInterval = time.Second

// coalescer keeps a box from filling the log with what it can cause as often as it likes: refusals, and flows that the
// kernel forwards. The first event about a destination is told at once; those like it are told together, with their
// number. What is remembered to know them by is bounded for each box. Events beyond the bound are told by number alone;
// none goes uncounted. Safe for concurrent use.
type coalescer struct {
	say func(Event)

	mu    sync.Mutex
	boxes map[policy.BoxID]*coalesced
}

// coalesced is what is remembered of one box.
type coalesced struct {
	refusals refusals
	flows    flows
	timer    *time.Timer
	resting  bool // the timer is set to the end of the memory, as there is nothing to tell
}

// coalesces reports whether an event is one that a box can cause as often as it likes. An open connection that is refused
// had to be made first, and its two events belong together.
func coalesces(e *Event) bool { return e.Verdict != policy.Allow && e.Phase == "" || isFlow(e) }

// admit reports whether the event is to be told now. If not, it is counted and told later. The event of a flow may be
// made one about its network.
func (c *coalescer) admit(e *Event) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.boxes[e.Box]
	if b == nil {
		b = &coalesced{}
		box := e.Box
		b.timer = time.AfterFunc(coalesceInterval, func() { c.due(box, b) })
		c.boxes[box] = b
	}
	if b.resting {
		b.resting = false
		b.timer.Reset(coalesceInterval)
	}
	if isFlow(e) {
		return b.flows.admit(e)
	}
	return b.refusals.admit(*e)
}

// due ends an interval of a box, and begins the next one if there was anything to tell.
func (c *coalescer) due(box policy.BoxID, b *coalesced) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.boxes[box] != b: // flushed
	case b.resting:
		delete(c.boxes, box)
	default:
		c.tell(append(b.refusals.take(), b.flows.take(flowsPerInterval)...))
		switch {
		case !b.refusals.quiet() || !b.flows.quiet():
			b.timer.Reset(coalesceInterval)
		case b.flows.empty():
			delete(c.boxes, box)
		default:
			b.resting = true
			b.timer.Reset(flowMemory)
		}
	}
}

// tell says events in the order of their times.
func (c *coalescer) tell(events []Event) {
	slices.SortStableFunc(events, func(x, y Event) int { return x.Time.Compare(y.Time) })
	for _, e := range events {
		c.say(e)
	}
}

// flush tells what was not told yet of a box, and forgets the box.
func (c *coalescer) flush(box policy.BoxID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.boxes[box]; b != nil {
		b.timer.Stop()
		c.tell(append(b.refusals.take(), b.flows.take(-1)...))
		delete(c.boxes, box)
	}
}

// flushAll does so for every box.
func (c *coalescer) flushAll() {
	c.mu.Lock()
	boxes := make([]policy.BoxID, 0, len(c.boxes))
	for id := range c.boxes {
		boxes = append(boxes, id)
	}
	c.mu.Unlock()
	for _, id := range boxes {
		c.flush(id)
	}
}
