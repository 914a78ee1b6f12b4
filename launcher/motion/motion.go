package motion

import (
	"context"
	"errors"
	"sync"
	"time"

	"boxgate/policy"
)

// startingMost is how long a box that is to be frozen waits for commands that are being started. A box can hold up their
// start for ever, and must not hold up more than that.
const startingMost = 5 * time.Second

// ErrStill refuses what needs a box that is not paused.
var ErrStill = errors.New("the box is paused")

// Boxes says which boxes stand still. The zero value knows none. Safe for concurrent use.
type Boxes struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*moving
}

// moving is what is known of a box that stands still, or in which commands are being started.
type moving struct {
	still    bool          // it is frozen, or about to be
	briefly  bool          // it goes on by itself
	changed  chan struct{} // closed when anything here changes
	starting int
}

// change changes what is known of a box.
func (m *Boxes) change(id policy.BoxID, f func(*moving)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.boxes[id]
	if b == nil {
		b = &moving{changed: make(chan struct{})}
	}
	f(b)
	close(b.changed)
	b.changed = make(chan struct{})
	if m.boxes == nil {
		m.boxes = map[policy.BoxID]*moving{}
	}
	if m.boxes[id] = b; *b == (moving{changed: b.changed}) {
		delete(m.boxes, id)
	}
}

// Begin waits for a box that stands still briefly, and then keeps it from being frozen, for a while, until the command has
// started. The error of a paused box is [ErrStill].
func (m *Boxes) Begin(ctx context.Context, id policy.BoxID) (started func(), err error) {
	for {
		var now moving
		m.change(id, func(b *moving) {
			if !b.still {
				b.starting++
			}
			now = *b
		})
		if !now.still {
			return sync.OnceFunc(func() { m.change(id, func(b *moving) { b.starting-- }) }), nil
		}
		if !now.briefly {
			return nil, ErrStill
		}
		if err := m.await(ctx, id, func(b *moving) bool { return !b.still || !b.briefly }); err != nil {
			return nil, err
		}
	}
}

// Stop keeps commands from being started, and waits for those that are.
func (m *Boxes) Stop(ctx context.Context, id policy.BoxID, briefly bool) {
	m.change(id, func(b *moving) { b.still, b.briefly = true, briefly })
	ctx, cancel := context.WithTimeout(ctx, startingMost)
	defer cancel()
	_ = m.await(ctx, id, func(b *moving) bool { return b.starting == 0 })
}

// Stay notes that a box that stands still will not go on by itself.
func (m *Boxes) Stay(id policy.BoxID) {
	m.change(id, func(b *moving) { b.briefly = false })
}

// GoOn lets commands be started.
func (m *Boxes) GoOn(id policy.BoxID) {
	m.change(id, func(b *moving) { b.still, b.briefly = false, false })
}

// await waits for a condition.
func (m *Boxes) await(ctx context.Context, id policy.BoxID, met func(*moving) bool) error {
	for {
		var changed chan struct{}
		m.mu.Lock()
		if b := m.boxes[id]; b != nil && !met(b) {
			changed = b.changed
		}
		m.mu.Unlock()
		if changed == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
