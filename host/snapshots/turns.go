package snapshots

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

// turns bounds how many captures are under way, with at most one for each box. Waiters are served in the order of arrival, except that
// those of a box that has a turn wait for its end. Nor do boxes whose captures take long hold up those of others: if all turns have become
// long and others wait, the latest to become long has to make room. It may begin anew as a long one, of which there are never so many at
// a time that no turn is left for others. The zero value serves nobody.
type turns struct {
	mu      sync.Mutex
	free    int                    // guarded by mu, as what follows; turns left
	held    map[policy.BoxID]*turn // by the box that has it
	waiting []*waiter              // the first is the oldest
}

// brief is how long a turn lasts that is not long.
const brief = 2 * time.Minute

// errMakesRoom ends a turn that has become long for the sake of those that wait.
var errMakesRoom = errors.New("other boxes wait")

type turn struct {
	end   context.CancelCauseFunc
	long  time.Time // since when; zero: it is not
	again bool      // it was long from the start, and need not make room
	ended bool      // it has been told to make room
}

type waiter struct {
	box   policy.BoxID
	turn  *turn
	ready chan struct{} // closed when it has its turn
}

// take waits for a turn, which is long from the start if so asked. The capture must end when the context does that is returned, and then
// call done; if it has to make room, the context's cause is errMakesRoom.
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

// serve gives free turns to those that wait. The caller holds mu.
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

// lengthen has a turn become long after a while.
func (t *turns) lengthen(held *turn) {
	time.AfterFunc(brief, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		held.long = time.Now()
		t.makeRoom()
	})
}

// long is how many turns have become long. The caller holds mu.
func (t *turns) long() (n int) {
	for _, held := range t.held {
		if !held.long.IsZero() {
			n++
		}
	}
	return n
}

// makeRoom ends the turn that became long last, if all are and a box waits that has none. The caller holds mu.
func (t *turns) makeRoom() {
	wanted := slices.ContainsFunc(t.waiting, func(w *waiter) bool { return !w.turn.again && t.held[w.box] == nil })
	if !wanted || t.free > 0 || t.long() < len(t.held) {
		return
	}
	var last *turn
	for _, held := range t.held {
		if held.ended {
			return // there will be room
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
