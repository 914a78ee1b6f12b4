package access

import (
	"maps"
	"sync"
	"time"
)

// endedMost is the maximum number of remembered ended sessions. When it is exceeded, all sessions that have begun are
// ended.
const endedMost = 1024

// Ended are the sessions of one URL that were ended early. The zero value is empty. Safe for concurrent use.
type Ended struct {
	mu       sync.RWMutex
	sessions map[ID]time.Time // when they would have expired
	before   time.Time        // sessions that began before are ended
}

// NewEnded returns an Ended with stored sessions.
func NewEnded(sessions map[ID]time.Time, before time.Time) *Ended {
	return &Ended{sessions: maps.Clone(sessions), before: before}
}

// Has reports whether a session was ended.
func (e *Ended) Has(s Session) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	_, ended := e.sessions[s.ID]
	return ended || s.Began.Before(e.before)
}

// Add ends a session.
func (e *Ended) Add(s Session, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sessions == nil {
		e.sessions = map[ID]time.Time{}
	}
	e.sessions[s.ID] = s.Expires
	if len(e.sessions) <= endedMost {
		return
	}
	maps.DeleteFunc(e.sessions, func(_ ID, until time.Time) bool { return !now.Before(until) })
	if len(e.sessions) > endedMost {
		e.sessions, e.before = map[ID]time.Time{}, now.Add(time.Second) // sessions store their start in seconds
	}
}

// All returns the sessions that were ended, and the time before which all were.
func (e *Ended) All() (sessions map[ID]time.Time, before time.Time) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return maps.Clone(e.sessions), e.before
}
