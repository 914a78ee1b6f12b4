package acme

import (
	"errors"
	"slices"
	"sync"
)

// maxWaiting bounds the waiting attempts of one owner.
const maxWaiting = 64

var errBusy = errors.New("too many certificates of this owner are waiting to be obtained; the next visit tries again")

// turns assigns a bounded number of places to attempts, round-robin by owner. An owner gets a place only while it holds
// fewer than are free (a dynamic threshold, as switches use for shared buffers): a single owner gets half of them, a
// later one half of the rest, and an owner without a place gets the next one that is released. Safe for concurrent use.
type turns struct {
	mu      sync.Mutex
	free    int
	inUse   map[string]int
	waiting map[string][]*turn // by owner, first come first; no list is empty
	owners  []string           // owners with waiting attempts; the first one is next
}

// turn is an attempt that waits for a place or has one.
type turn struct {
	turns *turns
	owner string
	ready chan struct{} // closed once it has a place
}

func newTurns(places int) *turns {
	return &turns{free: places, inUse: map[string]int{}, waiting: map[string][]*turn{}}
}

// enqueue waits for a place on behalf of an owner. It fails with errBusy if too many of the owner's attempts are waiting.
func (t *turns) enqueue(owner string) (*turn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := t.waiting[owner]
	if len(line) >= maxWaiting {
		return nil, errBusy
	}
	if len(line) == 0 {
		t.owners = append(t.owners, owner)
	}
	w := &turn{turns: t, owner: owner, ready: make(chan struct{})}
	t.waiting[owner] = append(line, w)
	t.admitLocked()
	return w, nil
}

// release releases the place. Call it once, after ready is closed.
func (w *turn) release() {
	t := w.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if t.inUse[w.owner]--; t.inUse[w.owner] == 0 {
		delete(t.inUse, w.owner)
	}
	t.admitLocked()
}

// admitLocked assigns free places. One pass is enough: each assignment leaves fewer free places, so a skipped owner
// stays skipped.
func (t *turns) admitLocked() {
	for i := 0; i < len(t.owners); {
		owner := t.owners[i]
		if t.inUse[owner] >= t.free {
			i++
			continue
		}
		line := t.waiting[owner]
		t.free--
		t.inUse[owner]++
		close(line[0].ready)
		t.owners = slices.Delete(t.owners, i, i+1)
		if len(line) == 1 {
			delete(t.waiting, owner)
			continue
		}
		t.waiting[owner] = line[1:]
		t.owners = append(t.owners, owner)
	}
}

// counts returns the number of taken places and of waiting attempts.
func (t *turns) counts() (taken, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.inUse {
		taken += n
	}
	for _, line := range t.waiting {
		waiting += len(line)
	}
	return taken, waiting
}
