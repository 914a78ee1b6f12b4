package motion

import (
	"context"
	"errors"
	"sync"
	"time"

	"boxgate/policy"
)

// startingMost is how long the freeze of a box waits for commands that are being started. A box can stall their start for
// ever, and must not stall its freeze.
const startingMost = 5 * time.Second

// ErrStill is returned for operations on a paused box that need a running one.
var ErrStill = errors.New("the box is paused")

// Boxes tracks which boxes are frozen. The zero value is ready to use. Safe for concurrent use.
type Boxes struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*moving
}

// moving is the state of a box that is frozen, or in which commands are being started.
type moving struct {
	still    bool          // the box is frozen, or about to be
	briefly  bool          // it will be thawed automatically
	changed  chan struct{} // closed when any field changes
	starting int
}

// change updates the state of a box.
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

// Begin waits for a briefly frozen box, and then delays a freeze until started is called, for at most startingMost. For a
// paused box it returns [ErrStill].
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

// Stop prevents further starts of commands, and waits for the current ones.
func (m *Boxes) Stop(ctx context.Context, id policy.BoxID, briefly bool) {
	m.change(id, func(b *moving) { b.still, b.briefly = true, briefly })
	ctx, cancel := context.WithTimeout(ctx, startingMost)
	defer cancel()
	_ = m.await(ctx, id, func(b *moving) bool { return b.starting == 0 })
}

// Stay records that a frozen box will not be thawed automatically.
func (m *Boxes) Stay(id policy.BoxID) {
	m.change(id, func(b *moving) { b.briefly = false })
}

// GoOn allows commands to be started.
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
