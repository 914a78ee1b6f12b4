package audit

import (
	"time"

	"boxgate/policy"
)

// ring remembers the last events of one box. When it is full, events that are like a later one go first: what a box does
// over and over does not push out what it did once. After them go those of a weight that has more than its share: what is
// cheap to do does not push out what is not.
type ring struct {
	oldest, newest *remembered
	n              int
	weights        [weights]int // how many of each weight there are
	kinds          map[kind]*likes
	last           time.Time
	forgotten      uint64 // number of the latest event that is not in it any more
}

// weight says how much an event matters where not all can be kept.
type weight uint8

const (
	heavy  weight = iota // what was allowed and took a handshake at least
	middle               // TCP of the kernel that has begun
	light                // datagrams, and what was refused
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

// kind is what makes two events alike to whoever looks for what a box did.
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

// remembered is an event in the list of all, and in that of its kind.
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

// join counts an event with those it is like.
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

// least returns what goes when an event of kind k and weight w comes: the oldest of its kind if it is like others already,
// or else the oldest that is like a later one, or else the oldest of its own weight if that has its share, or else the oldest
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

// forget drops an event. One that a later one is like is counted there.
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
	// Of its kind it is the oldest: whatever is chosen to go is.
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
