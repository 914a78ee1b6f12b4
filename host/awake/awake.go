package awake

import (
	"sync"
	"sync/atomic"
	"time"
)

// Gate is what those who use a box pass, and what closes before the box is put to sleep. The zero value is closed. Safe for
// concurrent use.
//
// Who enters is counted before the gate is looked at, and who closes it looks at the count after that, so that one of the two
// notices the other.
type Gate struct {
	open   atomic.Bool
	users  atomic.Int64
	visits atomic.Int64 // requests to public URLs that wait for the box
	fresh  atomic.Int64 // until when the box's programs may still be starting, likewise
	last   atomic.Int64 // when the box was last used, in Unix nanoseconds

	mu    sync.Mutex
	heard map[uint16]bool // guarded by mu; ports on which programs listened since the box was started
}

// Enter reports whether the box is awake. If so it stays awake until Leave.
func (g *Gate) Enter() bool {
	g.users.Add(1)
	if !g.open.Load() {
		g.users.Add(-1)
		return false
	}
	g.Touch(time.Now())
	return true
}

// Leave ends what began with an Enter that succeeded.
func (g *Gate) Leave() {
	g.Touch(time.Now())
	g.users.Add(-1)
}

// Visit notes that a request to a public URL needs a port of the box, and reports whether that can be dialled. The box stays awake, or
// is to be woken, until Depart.
func (g *Gate) Visit(port uint16) bool {
	g.visits.Add(1)
	now := time.Now()
	g.Touch(now)
	return g.open.Load() && !g.Starting(now, port)
}

// startTime is how long the programs of a box may take to listen on their ports, once it was started.
const startTime = 30 * time.Second

// Started notes that the box was started: its programs do not listen yet.
func (g *Gate) Started() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.heard = nil
	g.fresh.Store(time.Now().Add(startTime).UnixNano())
}

// Starting reports whether the program for a port may still be starting.
func (g *Gate) Starting(now time.Time, port uint16) bool {
	if now.UnixNano() >= g.fresh.Load() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.heard[port]
}

// Listening notes that a program of the box listens on a port.
func (g *Gate) Listening(port uint16) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.heard == nil {
		g.heard = map[uint16]bool{}
	}
	g.heard[port] = true
}

// Depart ends what began with Visit.
func (g *Gate) Depart() {
	g.Touch(time.Now())
	g.visits.Add(-1)
}

// IsOpen reports whether the box is awake.
func (g *Gate) IsOpen() bool { return g.open.Load() }

// Idle reports whether nobody uses the box, and nobody has since a time.
func (g *Gate) Idle(since time.Time) bool {
	return g.users.Load() == 0 && g.visits.Load() == 0 && g.Last().Before(since)
}

// CloseIdle closes the gate if the box is idle, and reports whether it did.
func (g *Gate) CloseIdle(since time.Time) bool {
	if g.Close(); g.Idle(since) {
		return true
	}
	g.Open()
	return false
}

// Users returns how many use the box.
func (g *Gate) Users() int64 { return g.users.Load() }

// Touch notes that the box was in use at that time.
func (g *Gate) Touch(at time.Time) {
	for now := at.UnixNano(); ; {
		if old := g.last.Load(); old >= now || g.last.CompareAndSwap(old, now) {
			return
		}
	}
}

// Last returns when the box was last in use.
func (g *Gate) Last() time.Time { return time.Unix(0, g.last.Load()) }

// Open lets users in.
func (g *Gate) Open() { g.open.Store(true) }

// Close lets nobody in any more. Those who are in stay.
func (g *Gate) Close() { g.open.Store(false) }
