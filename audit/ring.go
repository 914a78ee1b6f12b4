package audit

import "time"

// ring remembers the last events of one box.
type ring struct {
	events []Event
	next   int // where the next event goes once the ring is full
	last   time.Time
}

func (r *ring) add(e Event, limit int) {
	r.last = e.Time
	if len(r.events) < limit {
		r.events = append(r.events, e)
		return
	}
	r.events[r.next] = e
	r.next = (r.next + 1) % limit
}

// appendMatching appends the selected events, oldest first.
func (r *ring) appendMatching(out []Event, f Filter) []Event {
	for i := range r.events {
		if e := r.events[(r.next+i)%len(r.events)]; f.matches(e) {
			out = append(out, e)
		}
	}
	return out
}
