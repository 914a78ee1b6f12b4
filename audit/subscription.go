package audit

import "sync/atomic"

// Subscription is one reader of the events, made by [Log.Subscribe].
type Subscription struct {
	filter Filter
	events chan Event
	lost   atomic.Uint64
}

// Events delivers the events in the order they were recorded. It is closed when the context of the subscription ends.
func (s *Subscription) Events() <-chan Event { return s.events }

// Lost returns how many events this reader has lost so far because it was too slow.
func (s *Subscription) Lost() uint64 { return s.lost.Load() }

// offer delivers e if there is room, and reports whether there was. Refusals and datagrams get half of the room, and
// TCP connections with an incomplete handshake three quarters: a burst of those does not make a reader lose more
// important events.
func (s *Subscription) offer(e Event) bool {
	room := cap(s.events)
	switch weightOf(&e) {
	case light:
		room /= 2
	case middle:
		room -= room / 4
	}
	if len(s.events) >= max(room, 1) {
		s.lost.Add(1)
		return false
	}
	select {
	case s.events <- e:
		return true
	default:
		s.lost.Add(1)
		return false
	}
}
