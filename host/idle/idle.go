// Package idle tracks the users of each box, so that a box in use is never paused.
package idle

import (
	"sync"
	"sync/atomic"
	"time"
)

// Gate tracks the users of a box, and is closed before the box is paused. The zero value is closed. Safe for concurrent
// use.
//
// Enter increments the count before it checks the gate, and closing checks the count after closing the gate, so that at
// least one of the two notices the other.
type Gate struct {
	open          atomic.Bool
	users         atomic.Int64
	visits        atomic.Int64 // requests to public URLs that are waiting for the box
	startingUntil atomic.Int64 // until when the box's programs may still be starting, in Unix nanoseconds
	last          atomic.Int64 // last use of the box, in Unix nanoseconds

	mu        sync.Mutex
	listening map[uint16]bool // guarded by mu; ports seen listening since the box was started
}

// Enter reports whether the box is awake. If so, it stays awake until Leave.
func (g *Gate) Enter() bool {
	g.users.Add(1)
	if !g.open.Load() {
		g.users.Add(-1)
		return false
	}
	g.Touch(time.Now())
	return true
}

// Leave ends a use that began with a successful Enter.
func (g *Gate) Leave() {
	g.Touch(time.Now())
	g.users.Add(-1)
}

// Visit records that a request to a public URL needs a port of the box, and reports whether the port can be dialled now.
// The box is kept awake until Depart.
func (g *Gate) Visit(port uint16) bool {
	g.visits.Add(1)
	now := time.Now()
	g.Touch(now)
	return g.open.Load() && !g.Starting(now, port)
}

// startTime is how long the programs of a newly started box may take to listen on their ports.
const startTime = 30 * time.Second

// Started records that the box was started, so that its programs are not listening yet.
func (g *Gate) Started() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listening = nil
	g.startingUntil.Store(time.Now().Add(startTime).UnixNano())
}

// Starting reports whether the program for a port may still be starting.
func (g *Gate) Starting(now time.Time, port uint16) bool {
	if now.UnixNano() >= g.startingUntil.Load() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.listening[port]
}

// Listening records that a program of the box listens on a port.
func (g *Gate) Listening(port uint16) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listening == nil {
		g.listening = map[uint16]bool{}
	}
	g.listening[port] = true
}

// Depart ends a use that began with Visit.
func (g *Gate) Depart() {
	g.Touch(time.Now())
	g.visits.Add(-1)
}

// IsOpen reports whether the box is awake.
func (g *Gate) IsOpen() bool { return g.open.Load() }

// Idle reports whether the box has no users, and was not used since a time.
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

// Users returns the number of users of the box.
func (g *Gate) Users() int64 { return g.users.Load() }

// Touch records a use of the box.
func (g *Gate) Touch(at time.Time) {
	for now := at.UnixNano(); ; {
		if old := g.last.Load(); old >= now || g.last.CompareAndSwap(old, now) {
			return
		}
	}
}

// Last returns the time of the last use.
func (g *Gate) Last() time.Time { return time.Unix(0, g.last.Load()) }

// Open admits users.
func (g *Gate) Open() { g.open.Store(true) }

// Close stops admitting users. Present users stay.
func (g *Gate) Close() { g.open.Store(false) }
