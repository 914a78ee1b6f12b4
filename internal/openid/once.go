package openid

import (
	"maps"
	"sync"
)

// onceMost is the maximum number of remembered tickets. Beyond it, an old one is dropped for each new one: accepting a
// ticket twice, which is useless without the provider's answer, is better than refusing all sign-ins.
const onceMost = 1 << 16

// Once remembers used tickets until they expire. The zero value is empty. Safe for concurrent use.
type Once struct {
	mu    sync.Mutex
	taken map[string]int64 // expiry by ticket
	swept int64            // time of the last removal of expired tickets
}

// First reports whether a ticket is used for the first time. Times are in Unix seconds.
func (o *Once) First(id []byte, until, now int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, again := o.taken[string(id)]; again || len(id) == 0 {
		return false
	}
	if o.taken == nil {
		o.taken = map[string]int64{}
	}
	if now != o.swept {
		o.swept = now
		maps.DeleteFunc(o.taken, func(_ string, until int64) bool { return now >= until })
	}
	for other := range o.taken {
		if len(o.taken) < onceMost {
			break
		}
		delete(o.taken, other)
	}
	o.taken[string(id)] = until
	return true
}
