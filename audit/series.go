package audit

import "sync"

// known is the set of label combinations seen so far. The zero value is empty. Safe for concurrent use.
type known struct {
	mu   sync.RWMutex
	seen map[series]struct{}
}

// admit returns s if it is or may become a series of its own, else the series that stands for all others.
func (k *known) admit(s series) series {
	k.mu.RLock()
	_, ok := k.seen[s]
	full := len(k.seen) >= maxSeries
	k.mu.RUnlock()
	if ok {
		return s
	}
	other := series{stage: "other", verdict: s.verdict, reason: "other", action: "other"}
	if full || !isLabel(string(s.stage)) || !isLabel(string(s.reason)) || !isLabel(string(s.action)) {
		return other
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seen == nil {
		k.seen = map[series]struct{}{}
	}
	k.seen[s] = struct{}{}
	return s
}

// isLabel reports whether s has the form of a reason, stage or action: a short word in lower case, or nothing.
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
