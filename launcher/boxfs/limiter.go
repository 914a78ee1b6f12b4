package boxfs

import (
	"context"
	"sync"

	"boxgate/policy"
)

// PerBox is the maximum number of concurrent sessions of a box.
const PerBox = 8

// Limiter limits the sessions of each box. The zero value is ready to use.
type Limiter struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*boxSessions // guarded by mu
}

type boxSessions struct {
	free  chan struct{} // a token for each running session
	users int           // holders and waiters
}

// Acquire waits for a free session. The caller must call done.
func (t *Limiter) Acquire(ctx context.Context, id policy.BoxID) (done func(), err error) {
	t.mu.Lock()
	if t.boxes == nil {
		t.boxes = map[policy.BoxID]*boxSessions{}
	}
	b := t.boxes[id]
	if b == nil {
		b = &boxSessions{free: make(chan struct{}, PerBox)}
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

func (t *Limiter) release(id policy.BoxID, b *boxSessions) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.users--; b.users == 0 {
		delete(t.boxes, id)
	}
}
