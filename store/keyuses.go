package store

import (
	"maps"
	"sync"
	"time"
)

// keyUses are the latest uses of API keys that are not stored yet. The zero value is empty. Safe for concurrent use.
type keyUses struct {
	mu     sync.Mutex
	latest map[KeyHash]time.Time
}

// add adds a use.
func (u *keyUses) add(key KeyHash, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.latest == nil {
		u.latest = map[KeyHash]time.Time{}
	}
	u.latest[key] = at
}

// of returns the use of a key that is not stored yet, if any.
func (u *keyUses) of(key KeyHash) (time.Time, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	at, ok := u.latest[key]
	return at, ok
}

// takeAll returns and removes all uses, to be stored.
func (u *keyUses) takeAll() map[KeyHash]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := u.latest
	u.latest = nil
	return all
}

// restore adds uses that could not be stored, except for keys used since.
func (u *keyUses) restore(uses map[KeyHash]time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.Copy(uses, u.latest)
	u.latest = uses
}
