package balancer

import (
	"errors"
	"sync"
	"time"
)

// FreshTime is how far the time of a header may be from that of its receiver, either way. It bounds the difference between the clocks of
// hosts.
const FreshTime = 15 * time.Second

// freshMost is the number of headers in one generation. It bounds the memory to two of them, some 16 MiB.
const freshMost = 1 << 17

var (
	errStale  = errors.New("the PROXY header is older or newer than the clocks of hosts may differ (15 s), or from before the start of this gateway")
	errReplay = errors.New("the PROXY header was used before")
)

// Fresh accepts each header once. It remembers headers as long as their times are acceptable, in two generations; with too many of them the
// older generation is forgotten early, and with it all times up to its latest one are refused. So no header is ever accepted twice. Create
// it with [NewFresh]. Safe for concurrent use.
type Fresh struct {
	most int

	mu      sync.Mutex
	floor   time.Time // headers must be later
	began   time.Time // of current
	current generation
	before  generation
}

type generation struct {
	seen   map[Nonce]struct{}
	latest time.Time // of its headers
}

// NewFresh returns a memory without headers. It accepts none from before now, as an earlier process may have accepted them.
func NewFresh(now time.Time) *Fresh {
	return &Fresh{most: freshMost, floor: now.Truncate(time.Millisecond).Add(-1), // times of headers are in milliseconds
		began: now, current: generation{seen: map[Nonce]struct{}{}}}
}

// Accept returns nil for a verified header that is neither stale nor seen before, and remembers it.
func (f *Fresh) Accept(at time.Time, nonce Nonce, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.current.seen) >= f.most || now.Sub(f.began) > 2*FreshTime {
		if f.floor.Before(f.before.latest) {
			f.floor = f.before.latest
		}
		f.before, f.current, f.began = f.current, generation{seen: map[Nonce]struct{}{}}, now
	}
	if age := now.Sub(at); age > FreshTime || age < -FreshTime || !at.After(f.floor) {
		return errStale
	}
	_, recent := f.current.seen[nonce]
	_, earlier := f.before.seen[nonce]
	if recent || earlier {
		return errReplay
	}
	f.current.seen[nonce] = struct{}{}
	if at.After(f.current.latest) {
		f.current.latest = at
	}
	return nil
}
