package account

import (
	"maps"
	"sync"
)

// onceMost is how many tickets are remembered. Beyond it, one is forgotten for each that is new: what is worth nothing
// without the provider's answer, or comes after it, is better taken twice than nobody's at all.
const onceMost = 1 << 16

// once remembers the tickets that were taken, until they expire. The zero value has none. Safe for concurrent use.
type once struct {
	mu    sync.Mutex
	taken map[string]int64 // until when
	swept int64            // when those that had expired were last removed
}

// first reports whether a ticket is taken for the first time. Times are in Unix seconds.
func (o *once) first(id []byte, until, now int64) bool {
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
