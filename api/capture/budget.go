package capture

import (
	"context"
	"sync"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/quota"
)

// Least is the minimum size of every answer, whatever is left of the budget after it was opened.
const Least = 16 << 10

// Budget bounds the memory of all answers under construction together, in bytes as in JSON. Create it with [New]; the
// zero value allows no answer. Safe for concurrent use.
//
// A box may not hold more than what remains for the others: half of the budget if it is the only one, and 1/(n+1) each if
// n boxes take as much as they can. So another box always gets its share, however much the others print.
type Budget struct {
	total int

	mu    sync.Mutex
	used  int                  // guarded by mu
	boxes map[policy.BoxID]int // bytes held by each box; guarded by mu
}

// New returns a budget of that many bytes.
func New(total int) *Budget { return &Budget{total: total, boxes: map[policy.BoxID]int{}} }

// Most returns the maximum that one box can hold.
func (b *Budget) Most() int { return b.total/2 - Least }

// InUse returns the number of bytes in use.
func (b *Budget) InUse() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// reserve reserves n bytes for a box and reports whether that succeeded.
func (b *Budget) reserve(box policy.BoxID, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if mine, left := b.boxes[box]+n, b.total-b.used-n; left < mine {
		return false
	}
	b.used += n
	b.boxes[box] += n
	return true
}

func (b *Budget) release(box policy.BoxID, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.boxes[box] -= n; b.boxes[box] == 0 {
		delete(b.boxes, box)
	}
}

// Open reserves [Least] bytes for an answer about a box. All its memory is released when ctx ends; for the context of a
// request, that is after the response was written. Open fails if there is no space, before any work for the answer was
// done.
func (b *Budget) Open(ctx context.Context, box policy.BoxID) (*Answer, error) {
	if !b.reserve(box, Least) {
		return nil, ErrFull
	}
	scope := quota.ScopeOf(ctx)
	if err := scope.Acquire(quota.Memory, Least); err != nil {
		b.release(box, Least)
		return nil, err
	}
	a := &Answer{budget: b, box: box, scope: scope, reserved: Least}
	context.AfterFunc(ctx, a.close)
	return a, nil
}

// ErrFull is returned if the budget has no space for an answer.
var ErrFull = &api.Error{Kind: api.ErrLimit, Message: "too much output is on its way to other callers; call again later, or use a call that streams (exec-stream, files/download)"}
