package snapshots

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

// turns limits the number of concurrent captures, with at most one per box. Waiters are served in the order of arrival,
// except that captures of the same box wait for each other. Long captures must not starve other boxes: if all turns have
// become long and a box without a turn waits, the turn that became long last is ended with errYielded. Its capture may
// start over as a long one; long restarts never occupy all turns, unless there is only one. The zero value has no turns.
type turns struct {
	mu      sync.Mutex
	free    int                    // guarded by mu, like the fields below; number of free turns
	holders map[policy.BoxID]*turn // by the box that holds it
	waiting []*waiter              // oldest first
}

// brief is the duration after which a turn becomes long.
const brief = 2 * time.Minute

// errYielded ends a long turn in favor of waiting boxes.
var errYielded = errors.New("other boxes wait")

type turn struct {
	cancel    context.CancelCauseFunc
	long      time.Time // when it became long; zero: it has not
	restarted bool      // a restarted long capture, which is not ended again
	ending    bool      // it was canceled with errYielded
}

type waiter struct {
	box   policy.BoxID
	turn  *turn
	ready chan struct{} // closed when the waiter gets its turn
}

// acquire waits for a turn. long marks a restarted capture, whose turn is long from the start. The capture must end when
// the returned context is done, and then call done. If it is ended in favor of another box, the context's cause is
// errYielded.
func (t *turns) acquire(ctx context.Context, box policy.BoxID, long bool) (_ context.Context, done func(), err error) {
	ctx, end := context.WithCancelCause(ctx)
	w := &waiter{box, &turn{cancel: end, restarted: long}, make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.serve()
	t.endOneLong()
	t.mu.Unlock()
	select {
	case <-w.ready:
		return ctx, sync.OnceFunc(func() { t.release(w) }), nil
	case <-ctx.Done():
		t.release(w)
		return nil, nil, ctx.Err()
	}
}

// release ends a turn, or the wait for one.
func (t *turns) release(w *waiter) {
	w.turn.cancel(nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := slices.Index(t.waiting, w); at >= 0 {
		t.waiting = slices.Delete(t.waiting, at, at+1)
		return
	}
	t.free++
	delete(t.holders, w.box)
	t.serve()
}

// serve assigns free turns to waiters. The caller holds mu.
func (t *turns) serve() {
	t.waiting = slices.DeleteFunc(t.waiting, func(w *waiter) bool {
		if t.free == 0 || t.holders[w.box] != nil || w.turn.restarted && t.countLong() >= max(1, t.free+len(t.holders)-1) {
			return false
		}
		if t.holders == nil {
			t.holders = map[policy.BoxID]*turn{}
		}
		t.free--
		t.holders[w.box] = w.turn
		if w.turn.restarted {
			w.turn.long = time.Now()
		} else {
			t.lengthen(w.turn)
		}
		close(w.ready)
		return true
	})
}

// lengthen makes a turn long after a while.
func (t *turns) lengthen(held *turn) {
	time.AfterFunc(brief, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		held.long = time.Now()
		t.endOneLong()
	})
}

// countLong returns the number of long turns. The caller holds mu.
func (t *turns) countLong() (n int) {
	for _, held := range t.holders {
		if !held.long.IsZero() {
			n++
		}
	}
	return n
}

// endOneLong ends the turn that became long last, if all turns are long and a box without a turn waits. The caller holds
// mu.
func (t *turns) endOneLong() {
	wanted := slices.ContainsFunc(t.waiting, func(w *waiter) bool { return !w.turn.restarted && t.holders[w.box] == nil })
	if !wanted || t.free > 0 || t.countLong() < len(t.holders) {
		return
	}
	var last *turn
	for _, held := range t.holders {
		if held.ending {
			return // a turn is already ending
		}
		if !held.restarted && (last == nil || held.long.After(last.long)) {
			last = held
		}
	}
	if last != nil {
		last.ending = true
		last.cancel(errYielded)
	}
}
