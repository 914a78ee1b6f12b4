package audit

import (
	"container/list"
	"slices"

	"boxgate/audit/lines"
	"boxgate/policy"
)

// ring keeps the last events of one box. When it is full, events that are like a later one are evicted first: what a
// box does repeatedly does not push out what it did once. After that come those of a weight that has more than its
// share: what is cheap to do does not push out what is not. Adding takes the same time however many there are.
type ring struct {
	lists     [weights + 1]events // each event is in one of them
	n         int
	kinds     kinds
	latest    *remembered
	forgotten uint64        // number of the latest event that was evicted
	used      *list.Element // of the boxes, by their latest events
	share     lines.Share   // of what is to be written to the log
	kept      lines.Share   // of what is to be written to the history
	exported  []lines.Share // of what is to be exported, in the order of the exports; nil: nothing yet
	name      string        // of the box
	named     bool          // the name is known, or that there is none
}

// weight says how much an event matters when not all can be kept.
type weight uint8

const (
	heavy  weight = iota // allowed, and took at least a handshake
	middle               // TCP forwarded by the kernel with an incomplete handshake
	light                // datagrams and refusals
	weights
	repeated = weights // index of the list of events that are like a later one, whatever their weight
)

func weightOf(e *Event) weight {
	switch {
	case e.Verdict != policy.Allow:
		return light
	case !isFlow(e):
		return heavy
	}
	switch laneOf(e) {
	case laneAnswered:
		return heavy
	case laneTCP:
		return middle
	default:
		return light
	}
}

// remembered is an event in one of the lists of a ring, and among those of its kind.
type remembered struct {
	Event
	in           *events
	before, next *remembered
	likes        *likes
	nextLike     *remembered
}

func (r *ring) add(e *Event, limit int) {
	hash, like := r.find(e)
	var m *remembered
	if r.n < limit {
		m = &remembered{}
	} else {
		m = r.least(like, weightOf(e), limit)
		if r.forget(m); like != nil && like.n == 0 {
			like = nil
		}
	}
	if like == nil {
		like = r.kinds.add(hash)
	}
	names := append(m.Headers[:0], e.Headers...) // the maker of the event may change its own
	m.Event, m.likes, m.nextLike = *e, like, nil
	m.Headers = names
	r.join(m)
	r.lists[weightOf(e)].push(m)
	r.n++
	r.latest = m
}

// find returns the hash of the kind of an event, and the events that are like it, or nil. Often the latest one is.
func (r *ring) find(e *Event) (uint64, *likes) {
	if r.latest != nil && alike(&r.latest.Event, e) {
		return r.latest.likes.hash, r.latest.likes
	}
	hash := hashOf(e)
	return hash, r.kinds.find(hash, e)
}

// join adds an event to those of its kind. The one before it is repeated now.
func (r *ring) join(m *remembered) {
	if before := m.likes.newest; before == nil {
		m.likes.oldest = m
	} else {
		before.nextLike = m
		before.in.remove(before)
		r.lists[repeated].push(before)
	}
	m.likes.newest = m
	m.likes.n++
}

// least returns the event to evict for one that is like those given, or none, and has weight w: the oldest of its kind
// if there are several, or else that which has been repeated for longest, or else the oldest of its own weight if that
// has its share, or else the oldest of the weight that has most.
func (r *ring) least(like *likes, w weight, limit int) *remembered {
	if like != nil && like.n > 1 {
		return like.oldest
	}
	if m := r.lists[repeated].oldest; m != nil {
		return m
	}
	if r.lists[w].n < max(limit/int(weights), 1) {
		for other := range weights {
			if r.lists[other].n > r.lists[w].n {
				w = other
			}
		}
	}
	return r.lists[w].oldest
}

// forget drops an event. If a later one is like it, that one counts it.
func (r *ring) forget(m *remembered) {
	m.in.remove(m)
	r.n--
	r.forgotten = max(r.forgotten, m.Seq)
	// It is the oldest of its kind: only those are ever evicted.
	if m.likes.n--; m.likes.n == 0 {
		r.kinds.drop(m.likes)
		return
	}
	m.likes.oldest = m.nextLike
	like := m.likes.newest
	like.Count = max(like.Count, 1) + max(m.Count, 1)
	like.BytesIn += m.BytesIn
	like.BytesOut += m.BytesOut
}

// appendMatching appends the selected events, in no particular order.
func (r *ring) appendMatching(out []Event, f Filter) []Event {
	for i := range r.lists {
		for m := r.lists[i].oldest; m != nil; m = m.next {
			if f.matches(&m.Event) {
				e := m.Event
				e.Headers = slices.Clone(e.Headers)
				out = append(out, e)
			}
		}
	}
	return out
}

// events is a list in the order in which its events were pushed.
type events struct {
	oldest, newest *remembered
	n              int
}

func (l *events) push(m *remembered) {
	m.in, m.before, m.next = l, l.newest, nil
	if l.newest == nil {
		l.oldest = m
	} else {
		l.newest.next = m
	}
	l.newest = m
	l.n++
}

func (l *events) remove(m *remembered) {
	if m.before == nil {
		l.oldest = m.next
	} else {
		m.before.next = m.next
	}
	if m.next == nil {
		l.newest = m.before
	} else {
		m.next.before = m.before
	}
	l.n--
}
