package audit

import (
	"container/list"
	"slices"

	"boxgate/audit/lines"
	"boxgate/policy"
)

// ring keeps the latest events of one box. When it is full, it first evicts events that a later event resembles, so
// that repetition does not displace unique events; then events of a weight that has more than its share, so that cheap
// events do not displace costly ones. Adding takes constant time.
type ring struct {
	lists        [weights + 1]events // each event is in one of them
	n            int
	kinds        kinds
	latest       *remembered
	forgotten    uint64        // Seq of the latest event that was evicted
	element      *list.Element // in Log.recency
	logShare     lines.Share   // of the log's buffer
	historyShare lines.Share   // of the history's buffer
	exportShares []lines.Share // of the exports' buffers, in their order; nil: not used yet
	name         string        // of the box
	named        bool          // the name is known, even if it is empty
}

// weight is the importance of an event when not all can be kept.
type weight uint8

const (
	heavy  weight = iota // allowed, and took at least a handshake
	middle               // TCP forwarded by the kernel with an incomplete handshake
	light                // datagrams and refusals
	weights
	repeated = weights // index of the list of events that a later one resembles, whatever their weight
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

// remembered is an event in one of the lists of a ring, and in the list of its kind.
type remembered struct {
	Event
	in           *events
	before, next *remembered
	kind         *kindEvents
	nextOfKind   *remembered
}

func (r *ring) add(e *Event, limit int) {
	hash, like := r.find(e)
	var m *remembered
	if r.n < limit {
		m = &remembered{}
	} else {
		m = r.evictionCandidate(like, weightOf(e), limit)
		if r.evict(m); like != nil && like.n == 0 {
			like = nil
		}
	}
	if like == nil {
		like = r.kinds.add(hash)
	}
	names := append(m.Headers[:0], e.Headers...) // a copy, because the caller may change its own
	m.Event, m.kind, m.nextOfKind = *e, like, nil
	m.Headers = names
	r.addToKind(m)
	r.lists[weightOf(e)].push(m)
	r.n++
	r.latest = m
}

// find returns the hash of an event's kind, and the events of that kind or nil. It tries the latest event first.
func (r *ring) find(e *Event) (uint64, *kindEvents) {
	if r.latest != nil && sameKind(&r.latest.Event, e) {
		return r.latest.kind.hash, r.latest.kind
	}
	hash := hashOf(e)
	return hash, r.kinds.find(hash, e)
}

// addToKind adds an event to the list of its kind. The previous one becomes a repeated one.
func (r *ring) addToKind(m *remembered) {
	if before := m.kind.newest; before == nil {
		m.kind.oldest = m
	} else {
		before.nextOfKind = m
		before.in.remove(before)
		r.lists[repeated].push(before)
	}
	m.kind.newest = m
	m.kind.n++
}

// evictionCandidate returns the event to evict for a new one of kind like (nil if new) and weight w: the oldest of its
// kind if there are several, else the oldest repeated event, else the oldest of its weight if that has its share, else
// the oldest of the weight with the most events.
func (r *ring) evictionCandidate(like *kindEvents, w weight, limit int) *remembered {
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

// evict evicts an event. If a later one resembles it, that one takes over its count.
func (r *ring) evict(m *remembered) {
	m.in.remove(m)
	r.n--
	r.forgotten = max(r.forgotten, m.Seq)
	// It is the oldest of its kind: only those are ever evicted.
	if m.kind.n--; m.kind.n == 0 {
		r.kinds.drop(m.kind)
		return
	}
	m.kind.oldest = m.nextOfKind
	like := m.kind.newest
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

// events is a list of events in the order of their pushes.
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
