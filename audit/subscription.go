package audit

import (
	"slices"
	"sync/atomic"
)

// Subscription is one reader of the events, made by [Log.Subscribe].
type Subscription struct {
	filter Filter
	events chan Event
	lost   atomic.Uint64
}

// Events returns the channel of events, in the order they were recorded. It is closed when the context of the
// subscription ends.
func (s *Subscription) Events() <-chan Event { return s.events }

// Lost returns the number of events that this reader has lost because it was too slow.
func (s *Subscription) Lost() uint64 { return s.lost.Load() }

// deliver delivers a copy of e if the buffer has space, and reports whether it had.
func (s *Subscription) deliver(e *Event) bool {
	room := cap(s.events) * bufferQuarters(weightOf(e)) / 4
	if len(s.events) >= max(room, 1) {
		s.lost.Add(1)
		return false
	}
	own := *e
	own.Headers = slices.Clone(e.Headers)
	select {
	case s.events <- own:
		return true
	default:
		s.lost.Add(1)
		return false
	}
}
