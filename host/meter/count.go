package meter

import (
	"time"

	"boxgate/store"
)

// Reading is one reading of the kernel's counters of a box. An empty life means that there is no counter.
type Reading struct {
	GroupLife  string // of the cgroup
	CPU        time.Duration
	Memory     int64 // current
	PeakMemory int64
	OOMKills   uint64

	LinkLife string // of the interface
	In, Out  uint64 // bytes to the box and from it
}

// Growth is the usage since the previous reading.
type Growth struct {
	CPU               time.Duration
	In, Out, OOMKills uint64
}

// add adds the usage since the last reading. Totals never decrease: a counter with another life or a smaller value was
// restarted, and counts from zero.
func add(u store.Usage, r Reading) (store.Usage, Growth) {
	var g Growth
	if r.GroupLife != "" {
		g.CPU = time.Duration(advance(&u.CPU, r.GroupLife, uint64(max(r.CPU, 0))))
		g.OOMKills = advance(&u.OOMKills, r.GroupLife, r.OOMKills)
		u.PeakMemory = max(u.PeakMemory, r.PeakMemory, r.Memory)
	}
	if r.LinkLife != "" {
		g.In = advance(&u.In, r.LinkLife, r.In)
		g.Out = advance(&u.Out, r.LinkLife, r.Out)
	}
	return u, g
}

func advance(c *store.Count, life string, now uint64) uint64 {
	more := now
	if c.Life == life && now >= c.Seen {
		more = now - c.Seen
	}
	c.Total, c.Life, c.Seen = c.Total+more, life, now
	return more
}
