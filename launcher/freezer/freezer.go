// Package freezer keeps commands from being started in frozen boxes: some runtimes refuse that, others hang.
package freezer

import (
	"context"
	"errors"
	"sync"
	"time"

	"boxgate/policy"
)

// startTimeout is how long the freeze of a box waits for commands that are being started. A box can stall their start for
// ever, and must not stall its freeze.
const startTimeout = 5 * time.Second

// ErrPaused is returned for operations on a paused box that need a running one.
var ErrPaused = errors.New("the box is paused")

// Boxes tracks which boxes are frozen. The zero value is ready to use. Safe for concurrent use.
type Boxes struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*boxState
}

// boxState is the state of a box that is frozen, or in which commands are being started.
type boxState struct {
	frozen   bool          // the box is frozen, or about to be
	brief    bool          // it will be thawed automatically
	changed  chan struct{} // closed when any field changes
	starting int
}

// update updates the state of a box.
func (m *Boxes) update(id policy.BoxID, f func(*boxState)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.boxes[id]
	if b == nil {
		b = &boxState{changed: make(chan struct{})}
	}
	f(b)
	close(b.changed)
	b.changed = make(chan struct{})
	if m.boxes == nil {
		m.boxes = map[policy.BoxID]*boxState{}
	}
	if m.boxes[id] = b; *b == (boxState{changed: b.changed}) {
		delete(m.boxes, id)
	}
}

// BeginStart waits for a briefly frozen box, and then delays a freeze until started is called, for at most startTimeout. For a
// paused box it returns [ErrPaused].
func (m *Boxes) BeginStart(ctx context.Context, id policy.BoxID) (started func(), err error) {
	for {
		var now boxState
		m.update(id, func(b *boxState) {
			if !b.frozen {
				b.starting++
			}
			now = *b
		})
		if !now.frozen {
			return sync.OnceFunc(func() { m.update(id, func(b *boxState) { b.starting-- }) }), nil
		}
		if !now.brief {
			return nil, ErrPaused
		}
		if err := m.await(ctx, id, func(b *boxState) bool { return !b.frozen || !b.brief }); err != nil {
			return nil, err
		}
	}
}

// BlockStarts prevents further starts of commands, and waits for the current ones.
func (m *Boxes) BlockStarts(ctx context.Context, id policy.BoxID, briefly bool) {
	m.update(id, func(b *boxState) { b.frozen, b.brief = true, briefly })
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	_ = m.await(ctx, id, func(b *boxState) bool { return b.starting == 0 })
}

// KeepBlocked records that a frozen box will not be thawed automatically.
func (m *Boxes) KeepBlocked(id policy.BoxID) {
	m.update(id, func(b *boxState) { b.brief = false })
}

// AllowStarts allows commands to be started.
func (m *Boxes) AllowStarts(id policy.BoxID) {
	m.update(id, func(b *boxState) { b.frozen, b.brief = false, false })
}

// await waits for a condition.
func (m *Boxes) await(ctx context.Context, id policy.BoxID, met func(*boxState) bool) error {
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
