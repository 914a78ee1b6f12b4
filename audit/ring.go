package audit

import (
	"container/list"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
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
	denials      hour
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

// sameKind reports whether two events of a box have the same kind. [hashOf] covers the same fields.
func sameKind(a, b *Event) bool {
	return a.Name == b.Name && a.Path == b.Path && a.Messages == b.Messages && a.Addr == b.Addr && a.Port == b.Port && a.Conn == b.Conn &&
		a.Method == b.Method && a.Verdict == b.Verdict && a.Stage == b.Stage && a.Reason == b.Reason &&
		a.Protocol == b.Protocol && a.Action == b.Action && a.Rule == b.Rule && a.Peer == b.Peer && a.Status == b.Status &&
		a.Credential == b.Credential && a.SelfTest == b.SelfTest
}

// kindSeed makes the hashes unpredictable for a box, which chooses some of the texts.
var kindSeed = maphash.MakeSeed()

// hashOf returns the hash of an event's kind. Of texts with few possible values it covers only the length.
func hashOf(e *Event) uint64 {
	var n [44]byte
	addr, peer := e.Addr.As16(), e.Peer.As16()
	copy(n[:], addr[:])
	copy(n[16:], peer[:])
	binary.LittleEndian.PutUint16(n[32:], e.Port)
	binary.LittleEndian.PutUint16(n[34:], uint16(e.Status))
	n[36] = byte(e.Verdict)
	if e.SelfTest {
		n[37] = 1
	}
	n[38], n[39], n[40] = byte(len(e.Stage)), byte(len(e.Reason)), byte(len(e.Protocol))
	n[41], n[42] = byte(len(e.Action)), byte(len(e.Credential))
	h := maphash.Bytes(kindSeed, n[:])
	h = mix(h, e.Name)
	h = mix(h, e.Path)
	h = mix(h, e.Messages)
	h = mix(h, e.Conn)
	h = mix(h, e.Method)
	return mix(h, e.Rule)
}

// mix adds a text to a hash. The multiplication makes the result depend on the order of the texts.
func mix(h uint64, s string) uint64 {
	h = bits.RotateLeft64(h, 29) * 0x9e3779b97f4a7c15
	if s == "" {
		return h
	}
	return h ^ maphash.String(kindSeed, s)
}

// kindEvents are the events of one kind in a ring.
type kindEvents struct {
	hash           uint64
	n              int
	oldest, newest *remembered
	next           *kindEvents // in the same bucket, or in the free list
}

// kinds maps an event to the events of its kind. The zero value is empty.
type kinds struct {
	buckets []*kindEvents // their number is a power of two
	n       int
	free    *kindEvents
}

func (k *kinds) bucket(hash uint64) **kindEvents { return &k.buckets[hash&uint64(len(k.buckets)-1)] }

// find returns the events of the same kind as e, or nil.
func (k *kinds) find(hash uint64, e *Event) *kindEvents {
	if k.n == 0 {
		return nil
	}
	for l := *k.bucket(hash); l != nil; l = l.next {
		if l.hash == hash && sameKind(&l.newest.Event, e) {
			return l
		}
	}
	return nil
}

// add adds a kind that find did not return.
func (k *kinds) add(hash uint64) *kindEvents {
	if k.n >= len(k.buckets) {
		k.grow()
	}
	l := k.free
	if l == nil {
		l = &kindEvents{}
	} else {
		k.free = l.next
	}
	at := k.bucket(hash)
	*l = kindEvents{hash: hash, next: *at}
	*at = l
	k.n++
	return l
}

func (k *kinds) grow() {
	old := k.buckets
	k.buckets = make([]*kindEvents, max(2*len(old), 16))
	for _, l := range old {
		for l != nil {
			next, at := l.next, k.bucket(l.hash)
			l.next, *at = *at, l
			l = next
		}
	}
}

// drop removes a kind whose last event was evicted.
func (k *kinds) drop(l *kindEvents) {
	at := k.bucket(l.hash)
	for *at != l {
		at = &(*at).next
	}
	*at = l.next
	*l = kindEvents{next: k.free}
	k.free = l
	k.n--
}
