package ingress

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"boxgate/policy"
)

const (
	// wakeWait is how long a request waits for its box. Then the client is asked to try again later, and the box continues to
	// wake.
	wakeWait = 10 * time.Second
	// wakeTime is how long waking a box may take.
	wakeTime = 2 * time.Minute
	// maxDoors is how many ports of a box are awaited at a time. A visitor whom the box shares all its ports with can ask for thousands,
	// and each is probed until its program listens.
	maxDoors = 16
)

// errWaking reports a box that is not awake yet.
var errWaking = errors.New("the box is still being started")

// ErrDown is wrapped by [Boxes.Wake] for a box that no visitor can wake.
var ErrDown = errors.New("the box is down")

// ErrEnded is wrapped by [Boxes.Wake] for a box that was paused at its end, and that its visitors do not wake.
var ErrEnded = errors.New("the box was paused at its end")

// ErrSpent is returned by [Boxes.Wake] for a box that has used up its quota of bytes.
var ErrSpent = errors.New("the box has used up its quota")

// wakers wakes boxes, once for each port however many requests wait: the programs of a box do not all listen at the same time.
// The zero value is ready to use.
type wakers struct {
	mu    sync.Mutex
	calls map[door]*waking
	doors map[policy.BoxID]int // of calls
}

// door is the port of a box that requests wait for.
type door struct {
	box  policy.BoxID
	port uint16
}

// waking is an attempt to wake a box.
type waking struct {
	done chan struct{}
	err  error // valid once done is closed
}

// enter keeps the box of a visit awake. If it sleeps, enter returns the attempt to wake it.
func (g *core) enter(v *visit) *waking {
	if g.Boxes == nil || v.target.awake() {
		return nil
	}
	v.uses = true
	if g.Boxes.Enter(v.target.Box, v.target.Addr.Port()) {
		return nil
	}
	return g.wakers.join(g.Boxes.Wake, v.target)
}

// wake waits a while for an attempt to wake the box of a visit, if there is one. If it reports false, the client has been answered.
func (g *core) wake(ctx context.Context, v *visit, call *waking) bool {
	if call == nil {
		return true
	}
	err := g.awaken(ctx, call)
	switch {
	case errors.Is(err, errCut):
		v.revoked()
	case err != nil:
		v.asleep(err)
	}
	return err == nil
}

func (g *core) awaken(ctx context.Context, call *waking) error {
	limit := time.NewTimer(g.wakeWait)
	defer limit.Stop()
	select {
	case <-call.done:
		return call.err
	case <-limit.C:
		return errWaking
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// join returns the running attempt to wake a box, or begins one. The attempt continues when the requests that wait for it have
// gone. With [maxDoors] attempts of the box, it returns one that has ended with errWaking.
func (w *wakers) join(wake func(context.Context, policy.BoxID, uint16) error, t Target) *waking {
	w.mu.Lock()
	defer w.mu.Unlock()
	to := door{t.Box, t.Addr.Port()}
	if call := w.calls[to]; call != nil {
		return call
	}
	if w.calls == nil {
		w.calls, w.doors = map[door]*waking{}, map[policy.BoxID]int{}
	}
	call := &waking{done: make(chan struct{})}
	if w.doors[to.box] >= maxDoors {
		call.err = errWaking
		close(call.done)
		return call
	}
	w.calls[to] = call
	w.doors[to.box]++
	go func() {
		defer w.finishWake(to, call)
		ctx, cancel := context.WithTimeout(context.Background(), wakeTime)
		defer cancel()
		call.err = wake(ctx, to.box, to.port)
	}()
	return call
}

// finishWake ends an attempt. A panic counts as a failure.
func (w *wakers) finishWake(to door, call *waking) {
	if p := recover(); p != nil {
		call.err = fmt.Errorf("panic in waking a box: %T", p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.calls, to)
	if w.doors[to.box]--; w.doors[to.box] <= 0 {
		delete(w.doors, to.box)
	}
	close(call.done)
}

// releaseBox ends the visit's hold on its box, so that the box may fall asleep. After that, passing bytes count as use of the
// box and an open connection does not.
func (g *core) releaseBox(v *visit) {
	if v.uses {
		v.uses = false
		g.Boxes.Leave(v.target.Box)
	}
}

// moved reports to Boxes that bytes have passed. It is called after releaseBox.
func (g *core) moved(v *visit, byVisitor bool) {
	if g.Boxes != nil && !v.target.awake() {
		g.Boxes.Moved(v.target.Box, byVisitor)
	}
}
