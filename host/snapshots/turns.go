package snapshots

import (
	"context"
	"slices"
	"sync"

	"boxgate/policy"
)

// turns bounds how many captures are under way, with at most one for each box, so that a box whose captures take long does
// not hold up those of others. Waiters are served in the order of arrival, except that those of a box that has a turn wait
// for its end. The zero value serves nobody.
type turns struct {
	mu      sync.Mutex
	free    int                   // guarded by mu; turns left
	busy    map[policy.BoxID]bool // guarded by mu; boxes that have a turn
	waiting []*waiter             // guarded by mu; the first is the oldest
}

type waiter struct {
	box   policy.BoxID
	ready chan struct{} // closed when it has its turn
}

// take waits for a turn. The caller must call done.
func (t *turns) take(ctx context.Context, box policy.BoxID) (done func(), err error) {
	w := &waiter{box, make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.serve()
	t.mu.Unlock()
	select {
	case <-w.ready:
		return sync.OnceFunc(func() { t.leave(w) }), nil
	case <-ctx.Done():
		t.leave(w)
		return nil, ctx.Err()
	}
}

// leave ends a turn, or the wait for one.
func (t *turns) leave(w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := slices.Index(t.waiting, w); at >= 0 {
		t.waiting = slices.Delete(t.waiting, at, at+1)
		return
	}
	t.free++
	delete(t.busy, w.box)
	t.serve()
}

// serve gives free turns to those that wait. The caller holds mu.
func (t *turns) serve() {
	t.waiting = slices.DeleteFunc(t.waiting, func(w *waiter) bool {
		if t.free == 0 || t.busy[w.box] {
			return false
		}
		if t.busy == nil {
			t.busy = map[policy.BoxID]bool{}
		}
		t.free--
		t.busy[w.box] = true
		close(w.ready)
		return true
	})
}
