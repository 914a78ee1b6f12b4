package audit

import (
	"maps"
	"sync"
	"sync/atomic"
)

// seriesCache is the set of label combinations seen so far, with their metrics. The zero value is empty. Safe for
// concurrent use.
type seriesCache struct {
	recent [64]atomic.Pointer[counters]         // a lookup that needs no hashing of labels
	all    atomic.Pointer[map[series]*counters] // replaced, never modified
	mu     sync.Mutex                           // guards replacing it
}

// slot is the place of s in recent. Another series may occupy it.
func (k *seriesCache) slot(s *series) *atomic.Pointer[counters] {
	return &k.recent[(7*len(s.reason)+3*len(s.action)+len(s.stage)+int(s.verdict))%len(k.recent)]
}

// get returns the metrics of s, or the "other" ones if s has unexpected labels or there are too many series. They are
// created on first use.
func (k *seriesCache) get(s series, make func(series) *counters) *counters {
	slot := k.slot(&s)
	if c := slot.Load(); c != nil && c.series == s {
		return c
	}
	if seen := k.all.Load(); seen != nil {
		if c := (*seen)[s]; c != nil {
			slot.Store(c)
			return c
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	seen := map[series]*counters{}
	if old := k.all.Load(); old != nil {
		seen = *old
	}
	if len(seen) >= maxSeries || !isLabel(string(s.stage)) || !isLabel(string(s.reason)) || !isLabel(string(s.action)) {
		s = series{stage: "other", verdict: s.verdict, reason: "other", action: "other"}
	}
	if c := seen[s]; c != nil {
		return c
	}
	seen = maps.Clone(seen)
	seen[s] = make(s)
	k.all.Store(&seen)
	return seen[s]
}

// isLabel reports whether s has the form of a reason, stage or action: a short word in lower case, or empty.
func isLabel(s string) bool {
	if len(s) > 32 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}
