package server

import (
	"maps"
	"net/http"
	"sync"
	"time"

	"boxgate/audit/trail"
	"boxgate/policy"
)

// This part bounds the entries of a busy terminal in the audit trail. A session over a WebSocket has one entry; input of a
// process arrives in one call for each key that is pressed.

// repeated are the endpoints whose calls only reach a running process. The start of the process has an entry of its
// own, and the trail has no input anyway.
var repeated = map[string]bool{"writeProcess": true, "resizeProcess": true}

const (
	repeatTime = time.Minute
	maxRepeats = 4096
)

// repeat is the key of equal calls. One of them is recorded each minute.
type repeat struct {
	key, remote, route, pid string
	box                     policy.BoxID
}

// repeats are the calls of [repeated] endpoints that were recorded lately. The zero value is empty. Safe for concurrent use.
type repeats struct {
	mu   sync.Mutex
	last map[repeat]time.Time
}

// repeatOf returns the key of a call.
func repeatOf(r *http.Request, e trail.Entry) repeat {
	return repeat{e.KeyID, e.Remote, e.Route, r.PathValue("pid"), e.Box}
}

// has reports whether an equal call was recorded less than a minute ago.
func (s *repeats) has(c repeat, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.last[c]
	return ok && now.Sub(at) < repeatTime
}

// add notes that a call was recorded. Beyond a number of different ones, every call is recorded.
func (s *repeats) add(c repeat, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.last) >= maxRepeats {
		maps.DeleteFunc(s.last, func(_ repeat, at time.Time) bool { return now.Sub(at) >= repeatTime })
	}
	if s.last == nil {
		s.last = map[repeat]time.Time{}
	}
	if len(s.last) < maxRepeats {
		s.last[c] = now
	}
}
