package audit

import (
	"slices"
	"time"

	"boxgate/policy"
)

// Activity sums up the latest decisions about a box.
type Activity struct {
	// Denied is the number of denials in the last hour, in whole minutes. Unlike the events in memory, it is complete.
	Denied uint64
	// Latest is the latest event. Its Time is never zero.
	Latest Event
}

// Activity returns the activity of each box with events in memory. It costs little: nothing is searched or sorted.
func (l *Log) Activity() map[policy.BoxID]Activity {
	now := minuteOf(time.Now())
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[policy.BoxID]Activity, len(l.boxes))
	for id, r := range l.boxes {
		if r.latest != nil {
			latest := r.latest.Event
			latest.Headers = slices.Clone(latest.Headers)
			all[id] = Activity{Denied: r.denials.sum(now), Latest: latest}
		}
	}
	return all
}

// minutesKept is the length of the period in which denials are counted.
const minutesKept = 60

// hour counts denials by minute. The zero value has none. Not safe for concurrent use.
type hour struct {
	latest int64               // the latest minute with a count, since the Unix epoch
	counts [minutesKept]uint32 // by minute modulo minutesKept; stop at the largest number
}

func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

// add counts n denials in a minute. Minutes that are too old are not counted.
func (h *hour) add(minute int64, n uint64) {
	if minute > h.latest {
		for m := max(h.latest+1, minute-minutesKept+1); m <= minute; m++ {
			h.counts[m%minutesKept] = 0
		}
		h.latest = minute
	}
	if minute > h.latest-minutesKept && minute >= 0 {
		c := &h.counts[minute%minutesKept]
		*c = uint32(min(uint64(*c)+n, 1<<32-1))
	}
}

// sum returns the denials of the minutesKept minutes that end with now.
func (h *hour) sum(now int64) (n uint64) {
	for m := max(now-minutesKept+1, h.latest-minutesKept+1, 0); m <= min(now, h.latest); m++ {
		n += uint64(h.counts[m%minutesKept])
	}
	return n
}
