package audit

import (
	"slices"
	"sync"
	"time"

	"boxgate/internal/fault"
	"boxgate/policy"
)

// coalesceInterval is the minimum time between two events for the same refusals or flows.
const coalesceInterval = time.Second

// coalescer keeps a box from flooding the log with events that it can cause without limit: refusals, flows that the
// kernel forwards, and the gateway's answers to strangers. The first event about a destination is emitted immediately;
// later ones are coalesced into one event with their count. The memory for distinguishing destinations is bounded per
// box. Events beyond it are only counted, but every event is counted. Safe for concurrent use.
type coalescer struct {
	emit func(*Event)

	mu    sync.Mutex
	boxes map[policy.BoxID]*coalesced
}

// coalesced is the state of one box.
type coalesced struct {
	mu       sync.Mutex // held while emitting, which keeps the events of the box in order without blocking other boxes
	refusals refusals
	flows    flows
	timer    *time.Timer
	idle     bool // no event is pending, and the timer fires when the state may be dropped
	dropped  bool // the next event of the box needs a new state
}

// coalesces reports whether a box, or a stranger who visits its public URLs, can cause the event without limit. The two
// events of an open connection that is refused belong together and are exempt: the connection had to be made first.
func coalesces(e *Event) bool {
	switch {
	case e.Verdict != policy.Allow:
		return e.Phase == "" || isFlow(e)
	case e.Action == ActionAnswer:
		return e.Credential == "" || e.Credential == CredentialNone
	default:
		return isFlow(e)
	}
}

// admit reports whether to emit the event now. Otherwise the event is counted and emitted later. admit may turn the
// event of a flow into one about its network.
func (c *coalescer) admit(e *Event) bool {
	b := c.lockBox(e.Box)
	defer b.mu.Unlock()
	if b.idle {
		b.idle = false
		b.timer.Reset(fault.Interval(coalesceInterval))
	}
	if isFlow(e) {
		return b.flows.admit(e)
	}
	return b.refusals.admit(e)
}

// lockBox returns the state of a box, locked.
func (c *coalescer) lockBox(box policy.BoxID) *coalesced {
	for {
		b := c.stateOf(box)
		b.mu.Lock()
		if !b.dropped {
			return b
		}
		b.mu.Unlock()
	}
}

// stateOf returns the state of a box, and creates it if needed. It may be dropped before the caller locks it.
func (c *coalescer) stateOf(box policy.BoxID) *coalesced {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.boxes[box]
	if b == nil {
		b = &coalesced{}
		b.mu.Lock() // due needs the timer
		defer b.mu.Unlock()
		b.timer = time.AfterFunc(fault.Interval(coalesceInterval), func() { c.endInterval(box, b) })
		c.boxes[box] = b
	}
	return b
}

// dropLocked drops the state of a box. The caller holds b.mu.
func (c *coalescer) dropLocked(box policy.BoxID, b *coalesced) {
	b.dropped = true
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.boxes, box)
}

// endInterval ends an interval of a box, and begins the next one if the interval had events.
func (c *coalescer) endInterval(box policy.BoxID, b *coalesced) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.dropped: // flushed
	case b.idle:
		c.dropLocked(box, b)
	default:
		c.emitAll(append(b.refusals.takePending(), b.flows.takePending(flowsPerInterval)...))
		switch {
		case !b.refusals.isQuiet() || !b.flows.isQuiet():
			b.timer.Reset(fault.Interval(coalesceInterval))
		case b.flows.isEmpty():
			c.dropLocked(box, b)
		default:
			b.idle = true
			b.timer.Reset(flowMemory)
		}
	}
}

// emitAll emits events in the order of their times.
func (c *coalescer) emitAll(events []Event) {
	slices.SortStableFunc(events, func(x, y Event) int { return x.Time.Compare(y.Time) })
	for i := range events {
		c.emit(&events[i])
	}
}

// flush emits the pending events of a box and drops its state.
func (c *coalescer) flush(box policy.BoxID) {
	c.mu.Lock()
	b := c.boxes[box]
	c.mu.Unlock()
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.dropped {
		b.timer.Stop()
		c.emitAll(append(b.refusals.takePending(), b.flows.takePending(-1)...))
		c.dropLocked(box, b)
	}
}

// flushAll calls flush for every box.
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
