package secrets

import (
	"time"

	"boxgate/internal/fault"
)

// moment is a point in time on two clocks. The monotonic clock cannot be set, but stops while the host is suspended;
// the wall clock continues, but can be set. A value expires on whichever clock gets there first.
type moment struct {
	elapsed time.Duration // since the secrets were opened
	wall    time.Time
}

func (m moment) add(d time.Duration) moment {
	return moment{elapsed: m.elapsed + d, wall: m.wall.Add(d)}
}

// isReachedBy reports whether now is m or later.
func (m moment) isReachedBy(now moment) bool {
	return now.elapsed >= m.elapsed || !now.wall.Before(m.wall)
}

// clock returns a function that returns the current time.
func clock() func() moment {
	start := time.Now()
	return func() moment { return moment{elapsed: time.Since(start), wall: fault.Now().Round(0)} }
}
