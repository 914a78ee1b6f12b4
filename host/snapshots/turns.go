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
// become long and a box without a turn waits, the turn that became long last is ended with errMakesRoom. Its capture may
// start over as a long one; long restarts never occupy all turns, unless there is only one. The zero value has no turns.
type turns struct {
	mu      sync.Mutex
	free    int                    // guarded by mu, like the fields below; number of free turns
	held    map[policy.BoxID]*turn // by the box that holds it
	waiting []*waiter              // oldest first
}

// brief is the duration after which a turn becomes long.
const brief = 2 * time.Minute

// errMakesRoom ends a long turn in favor of waiting boxes.
var errMakesRoom = errors.New("other boxes wait")

type turn struct {
	end   context.CancelCauseFunc
	long  time.Time // when it became long; zero: it has not
	again bool      // a restarted long capture, which is not ended again
	ended bool      // it was asked to make room
}

type waiter struct {
	box   policy.BoxID
	turn  *turn
	ready chan struct{} // closed when the waiter gets its turn
}

// take waits for a turn. long marks a restarted capture, whose turn is long from the start. The capture must end when the
// returned context is done, and then call done. If it has to make room, the context's cause is errMakesRoom.
func (t *turns) take(ctx context.Context, box policy.BoxID, long bool) (_ context.Context, done func(), err error) {
	ctx, end := context.WithCancelCause(ctx)
	w := &waiter{box, &turn{end: end, again: long}, make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.serve()
	t.makeRoom()
	t.mu.Unlock()
	select {
	case <-w.ready:
		return ctx, sync.OnceFunc(func() { t.leave(w) }), nil
	case <-ctx.Done():
		t.leave(w)
		return nil, nil, ctx.Err()
	}
}

// leave ends a turn, or the wait for one.
func (t *turns) leave(w *waiter) {
	w.turn.end(nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := slices.Index(t.waiting, w); at >= 0 {
		t.waiting = slices.Delete(t.waiting, at, at+1)
		return
	}
	t.free++
	delete(t.held, w.box)
	t.serve()
}

// serve assigns free turns to waiters. The caller holds mu.
func (t *turns) serve() {
	t.waiting = slices.DeleteFunc(t.waiting, func(w *waiter) bool {
		if t.free == 0 || t.held[w.box] != nil || w.turn.again && t.long() >= max(1, t.free+len(t.held)-1) {
			return false
		}
		if t.held == nil {
			t.held = map[policy.BoxID]*turn{}
		}
		t.free--
		t.held[w.box] = w.turn
		if w.turn.again {
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
		t.makeRoom()
	})
}

// long returns the number of long turns. The caller holds mu.
func (t *turns) long() (n int) {
	for _, held := range t.held {
		if !held.long.IsZero() {
			n++
		}
	}
	return n
}

// makeRoom ends the turn that became long last, if all turns are long and a box without a turn waits. The caller holds
// mu.
func (t *turns) makeRoom() {
	wanted := slices.ContainsFunc(t.waiting, func(w *waiter) bool { return !w.turn.again && t.held[w.box] == nil })
	if !wanted || t.free > 0 || t.long() < len(t.held) {
		return
	}
	var last *turn
	for _, held := range t.held {
		if held.ended {
			return // a turn is already ending
		}
		if !held.again && (last == nil || held.long.After(last.long)) {
			last = held
		}
	}
	if last != nil {
		last.ended = true
		last.end(errMakesRoom)
	}
}
