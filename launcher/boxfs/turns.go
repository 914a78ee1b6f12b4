package boxfs

import (
	"context"
	"sync"

	"boxgate/policy"
)

// PerBox is the maximum number of concurrent sessions of a box.
const PerBox = 8

// Turns limits the sessions of each box. The zero value is ready to use.
type Turns struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*turns // guarded by mu
}

type turns struct {
	free  chan struct{} // a token for each running session
	users int           // holders and waiters
}

// Take waits for a free session. The caller must call done.
func (t *Turns) Take(ctx context.Context, id policy.BoxID) (done func(), err error) {
	t.mu.Lock()
	if t.boxes == nil {
		t.boxes = map[policy.BoxID]*turns{}
	}
	b := t.boxes[id]
	if b == nil {
		b = &turns{free: make(chan struct{}, PerBox)}
		t.boxes[id] = b
	}
	b.users++
	t.mu.Unlock()
	select {
	case b.free <- struct{}{}:
		return sync.OnceFunc(func() { <-b.free; t.release(id, b) }), nil
	case <-ctx.Done():
		t.release(id, b)
		return nil, context.Cause(ctx)
	}
}

func (t *Turns) release(id policy.BoxID, b *turns) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.users--; b.users == 0 {
		delete(t.boxes, id)
	}
}
