package meter

import (
	"time"

	"boxgate/store"
)

// Reading is what the kernel's counters of a box say. A life that is empty means that there is no counter.
type Reading struct {
	GroupLife  string // of the control group
	CPU        time.Duration
	Memory     int64 // now
	PeakMemory int64
	OOMKills   uint64

	LinkLife string // of the interface
	In, Out  uint64 // towards the box, and from it
}

// Growth is how much more was used.
type Growth struct {
	CPU               time.Duration
	In, Out, OOMKills uint64
}

// add adds what has been used since the last reading. Totals never become less: a counter with another life, or that says less
// than before, counts from zero.
func add(u store.Usage, r Reading) (store.Usage, Growth) {
	var g Growth
	if r.GroupLife != "" {
		g.CPU = time.Duration(grow(&u.CPU, r.GroupLife, uint64(max(r.CPU, 0))))
		g.OOMKills = grow(&u.OOMKills, r.GroupLife, r.OOMKills)
		u.PeakMemory = max(u.PeakMemory, r.PeakMemory, r.Memory)
	}
	if r.LinkLife != "" {
		g.In = grow(&u.In, r.LinkLife, r.In)
		g.Out = grow(&u.Out, r.LinkLife, r.Out)
	}
	return u, g
}

func grow(c *store.Count, life string, now uint64) uint64 {
	more := now
	if c.Life == life && now >= c.Seen {
		more = now - c.Seen
	}
	c.Total, c.Life, c.Seen = c.Total+more, life, now
	return more
}
