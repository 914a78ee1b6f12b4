package audit

import (
	"time"

	"boxgate/policy"
)

// ring remembers the last events of one box. When it is full, events that are like a later one go first: what a box does
// over and over does not push out what it did once.
type ring struct {
	events []*remembered // oldest first
	kinds  map[kind]*likes
	last   time.Time
}

// kind is what makes two events alike to whoever looks for what a box did.
type kind struct {
	refusal
	allowed bool
	conn    string
}

// likes are the events of one kind in the ring.
type likes struct {
	n      int
	latest *remembered
}

type remembered struct {
	Event
	kind  kind
	likes *likes
}

func (r *ring) add(e Event, limit int) {
	r.last = e.Time
	m := &remembered{Event: e, kind: kind{refusalOf(&e), e.Verdict == policy.Allow, e.Conn}}
	if r.kinds == nil {
		r.kinds = map[kind]*likes{}
	}
	if m.likes = r.kinds[m.kind]; m.likes == nil {
		m.likes = &likes{}
		r.kinds[m.kind] = m.likes
	}
	m.likes.n++
	m.likes.latest = m
	if r.events = append(r.events, m); len(r.events) > limit {
		r.forget(r.least())
	}
}

// least returns the index of the oldest event that is like a later one, or else of the oldest.
func (r *ring) least() int {
	for i, m := range r.events {
		if m.likes.n > 1 {
			return i
		}
	}
	return 0
}

// forget drops an event. One that a later one is like is counted there.
func (r *ring) forget(i int) {
	m := r.events[i]
	copy(r.events[i:], r.events[i+1:])
	r.events[len(r.events)-1] = nil
	r.events = r.events[:len(r.events)-1]
	if m.likes.n--; m.likes.n == 0 {
		delete(r.kinds, m.kind)
		return
	}
	like := m.likes.latest
	like.Count = max(like.Count, 1) + max(m.Count, 1)
	like.BytesIn += m.BytesIn
	like.BytesOut += m.BytesOut
}

// appendMatching appends the selected events, oldest first.
func (r *ring) appendMatching(out []Event, f Filter) []Event {
	for _, m := range r.events {
		if f.matches(m.Event) {
			out = append(out, m.Event)
		}
	}
	return out
}
