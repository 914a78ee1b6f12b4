package audit

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"boxgate/policy"
)

const (
	// thinInterval is the least time between two events about the same refusal.
	thinInterval = time.Second
	// thinKinds is how many different refusals of a box are told apart in one second, for as long as it goes on, and
	// thinBurst how many at once.
	thinKinds = 20
	thinBurst = 400
)

// thinner keeps a box from filling the log with refusals. The first of its kind is told at once, what is like it once an
// interval, with their number; of more kinds than thinKinds only the numbers are told, for each stage and reason. Nothing
// goes uncounted. Safe for concurrent use.
type thinner struct {
	say func(Event)

	mu    sync.Mutex
	boxes map[policy.BoxID]*refusals
}

// refusals are those of one box in the interval under way.
type refusals struct {
	room  *rate.Limiter        // for kinds that are new
	told  map[refusal]*repeats // kinds that were told; at most thinBurst + thinKinds
	rest  map[class]*repeats   // those for which there was no room
	timer *time.Timer
}

// refusal is what makes two refusals of a box the same one.
type refusal struct {
	class
	protocol     policy.Protocol
	name         string
	addr         netip.Addr
	port         uint16
	method, path string
	action       Action
	rule         string
	status       int
}

// class is what is told of refusals that are told by their number alone.
type class struct {
	stage  policy.Stage
	reason policy.Reason
}

// repeats are refusals that were not told yet.
type repeats struct {
	latest  Event
	n       uint64
	in, out int64
}

func refusalOf(e *Event) refusal {
	return refusal{
		class: class{e.Stage, e.Reason}, protocol: e.Protocol, name: e.Name, addr: e.Addr, port: e.Port, method: e.Method,
		path: e.Path, action: e.Action, rule: e.Rule, status: e.Status,
	}
}

func (r *repeats) add(e Event) {
	r.latest = e
	r.n += max(e.Count, 1)
	r.in, r.out = r.in+e.BytesIn, r.out+e.BytesOut
}

// take returns one event for all of them and forgets them; ok is false if there is none.
func (r *repeats) take() (e Event, ok bool) {
	if r.n == 0 {
		return Event{}, false
	}
	e = r.latest
	if e.BytesIn, e.BytesOut = r.in, r.out; r.n > 1 {
		e.Count = r.n
	}
	*r = repeats{}
	return e, true
}

// thins reports whether an event is one that a box can cause as often as it likes. An open connection that is refused had
// to be made first, and its two events belong together.
func thins(e *Event) bool { return e.Verdict != policy.Allow && e.Phase == "" }

// admit reports whether the event is to be told now. If not, it is counted and told later.
func (t *thinner) admit(e Event) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.boxes[e.Box]
	if b == nil {
		b = &refusals{room: rate.NewLimiter(thinKinds, thinBurst), told: map[refusal]*repeats{}, rest: map[class]*repeats{}}
		b.timer = time.AfterFunc(thinInterval, func() { t.due(e.Box, b) })
		t.boxes[e.Box] = b
	}
	kind := refusalOf(&e)
	if like := b.told[kind]; like != nil {
		like.add(e)
		return false
	}
	if b.room.Allow() {
		b.told[kind] = &repeats{}
		return true
	}
	rest := b.rest[kind.class]
	if rest == nil {
		rest = &repeats{}
		b.rest[kind.class] = rest
	}
	rest.add(e)
	return false
}

// due ends an interval of a box, and begins the next one if there was anything to tell.
func (t *thinner) due(box policy.BoxID, b *refusals) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.boxes[box] != b {
		return // flushed
	}
	t.sayLocked(b)
	if len(b.told) == 0 && b.room.Tokens() >= thinBurst {
		delete(t.boxes, box)
		return
	}
	b.timer.Reset(thinInterval)
}

// sayLocked tells what was not told yet. Some of the kinds that go on stay known; the others have to find room again.
func (t *thinner) sayLocked(b *refusals) {
	var events []Event
	kept := 0
	for kind, r := range b.told {
		e, ok := r.take()
		if ok {
			events = append(events, e)
		}
		if kept++; !ok || kept > thinKinds {
			kept--
			delete(b.told, kind)
		}
	}
	for _, r := range b.rest {
		if e, ok := r.take(); ok {
			e.Name, e.Addr, e.Port, e.Method, e.Path, e.Rule, e.Status = "", netip.Addr{}, 0, "", "", "", 0
			e.Error = "refusals of further kinds, told by their number"
			events = append(events, e)
		}
	}
	clear(b.rest)
	slices.SortFunc(events, func(x, y Event) int { return x.Time.Compare(y.Time) })
	for _, e := range events {
		t.say(e)
	}
}

// flush tells what was not told yet of a box.
func (t *thinner) flush(box policy.BoxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.boxes[box]; b != nil {
		b.timer.Stop()
		t.sayLocked(b)
		delete(t.boxes, box)
	}
}

// flushAll does so for every box.
func (t *thinner) flushAll() {
	t.mu.Lock()
	boxes := make([]policy.BoxID, 0, len(t.boxes))
	for id := range t.boxes {
		boxes = append(boxes, id)
	}
	t.mu.Unlock()
	for _, id := range boxes {
		t.flush(id)
	}
}
