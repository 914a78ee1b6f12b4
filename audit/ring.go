package audit

import (
	"time"

	"boxgate/policy"
)

// ring keeps the last events of one box. When it is full, events that are like a later one are evicted first: what a
// box does repeatedly does not push out what it did once. After that come those of a weight that has more than its
// share: what is cheap to do does not push out what is not.
type ring struct {
	oldest, newest *remembered
	n              int
	weights        [weights]int // how many of each weight there are
	kinds          map[kind]*likes
	last           time.Time
	forgotten      uint64 // number of the latest event that was evicted
}

// weight says how much an event matters when not all can be kept.
type weight uint8

const (
	heavy  weight = iota // allowed, and took at least a handshake
	middle               // TCP forwarded by the kernel with an incomplete handshake
	light                // datagrams and refusals
	weights
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

// kind is the key by which two events of a box are considered alike.
type kind struct {
	refusal
	allowed bool
	conn    string
}

// likes are the events of one kind in the ring.
type likes struct {
	n              int
	oldest, newest *remembered
}

// remembered is an event in the list of all events, and in that of its kind.
type remembered struct {
	Event
	kind         kind
	likes        *likes
	before, next *remembered
	nextLike     *remembered
}

func (r *ring) add(e Event, limit int) {
	r.last = e.Time
	k := kind{refusalOf(&e), e.Verdict == policy.Allow, e.Conn}
	var m *remembered
	if r.n >= limit {
		m = r.least(k, weightOf(&e), limit)
		r.forget(m)
	} else {
		m = &remembered{}
	}
	*m = remembered{Event: e, kind: k, before: r.newest, likes: r.kinds[k]}
	if r.newest == nil {
		r.oldest = m
	} else {
		r.newest.next = m
	}
	r.newest = m
	r.n++
	r.weights[weightOf(&e)]++
	r.join(m)
}

// join counts an event with those of its kind.
func (r *ring) join(m *remembered) {
	if m.likes == nil {
		if r.kinds == nil {
			r.kinds = map[kind]*likes{}
		}
		m.likes = &likes{oldest: m}
		r.kinds[m.kind] = m.likes
	} else {
		m.likes.newest.nextLike = m
	}
	m.likes.newest = m
	m.likes.n++
}

// least returns the event to evict for one of kind k and weight w: the oldest of its kind if there are several, or else
// the oldest that is like a later one, or else the oldest of its own weight if that has its share, or else the oldest
// of the weight that has most.
func (r *ring) least(k kind, w weight, limit int) *remembered {
	if same := r.kinds[k]; same != nil && same.n > 1 {
		return same.oldest
	}
	for m := r.oldest; m != nil; m = m.next {
		if m.likes.n > 1 {
			return m
		}
	}
	if r.weights[w] < max(limit/int(weights), 1) {
		for other, n := range r.weights {
			if n > r.weights[w] {
				w = weight(other)
			}
		}
	}
	for m := r.oldest; m != nil; m = m.next {
		if weightOf(&m.Event) == w {
			return m
		}
	}
	return r.oldest
}

// forget drops an event. If a later one is like it, that one counts it.
func (r *ring) forget(m *remembered) {
	if m.before == nil {
		r.oldest = m.next
	} else {
		m.before.next = m.next
	}
	if m.next == nil {
		r.newest = m.before
	} else {
		m.next.before = m.before
	}
	r.n--
	r.forgotten = max(r.forgotten, m.Seq)
	r.weights[weightOf(&m.Event)]--
	// It is the oldest of its kind: only those are ever evicted.
	if m.likes.n--; m.likes.n == 0 {
		delete(r.kinds, m.kind)
		return
	}
	m.likes.oldest = m.nextLike
	like := m.likes.newest
	like.Count = max(like.Count, 1) + max(m.Count, 1)
	like.BytesIn += m.BytesIn
	like.BytesOut += m.BytesOut
}

// appendMatching appends the selected events, oldest first.
func (r *ring) appendMatching(out []Event, f Filter) []Event {
	for m := r.oldest; m != nil; m = m.next {
		if f.matches(m.Event) {
			out = append(out, m.Event)
		}
	}
	return out
}
