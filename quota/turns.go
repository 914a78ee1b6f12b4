package quota

import (
	"context"
	"sync"
)

// Turns serialises expensive reads: one at a time for each API key. A key that asks often waits for itself, so that in a queue behind
// Turns, where each key has one place at most, other keys wait for one of its reads only. The zero value has no holders. Safe for
// concurrent use. Its size is bounded by the holders that have or await a turn.
type Turns struct {
	mu      sync.Mutex
	holders map[string]*turn
}

// turn is that of one holder.
type turn struct {
	held chan struct{} // has an element while the turn is held
	n    int           // holding or waiting; guarded by the mu of Turns
}

// Enter waits for the turn of a holder, by ID, or until ctx ends; then the error is its cause. leave ends the turn; it must be called once.
func (t *Turns) Enter(ctx context.Context, id string) (leave func(), err error) {
	t.mu.Lock()
	if t.holders == nil {
		t.holders = map[string]*turn{}
	}
	its := t.holders[id]
	if its == nil {
		its = &turn{held: make(chan struct{}, 1)}
		t.holders[id] = its
	}
	its.n++
	t.mu.Unlock()
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if its.n--; its.n == 0 {
			delete(t.holders, id)
		}
	}
	select {
	case its.held <- struct{}{}:
		return func() { <-its.held; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, context.Cause(ctx)
	}
}
