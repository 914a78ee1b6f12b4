package capture

import (
	"context"
	"sync"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/quota"
)

// Least is what each answer can hold, however little is left of the budget once it has begun.
const Least = 16 << 10

// Budget is what all answers in the making may hold together, in bytes as they will take in JSON. Create it with [New];
// the zero value has room for nothing. Safe for concurrent use.
//
// A box may hold no more than what is left for the others: alone half of the budget, and of n boxes that want all they can
// get each one part of n+1. So there is room for another box, whatever those before it print.
type Budget struct {
	total int

	mu    sync.Mutex
	held  int                  // guarded by mu
	boxes map[policy.BoxID]int // what each box holds; guarded by mu
}

// New returns a budget of that many bytes.
func New(total int) *Budget { return &Budget{total: total, boxes: map[policy.BoxID]int{}} }

// Most returns what one box can hold at the most.
func (b *Budget) Most() int { return b.total/2 - Least }

// Held returns how much is in use.
func (b *Budget) Held() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

// take reports whether a box may hold n bytes more, and counts them if so.
func (b *Budget) take(box policy.BoxID, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if mine, left := b.boxes[box]+n, b.total-b.held-n; left < mine {
		return false
	}
	b.held += n
	b.boxes[box] += n
	return true
}

func (b *Budget) release(box policy.BoxID, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
	if b.boxes[box] -= n; b.boxes[box] == 0 {
		delete(b.boxes, box)
	}
}

// Open begins an answer about a box, which holds [Least] from now on and gives everything back when ctx ends: with that of
// a request, once the answer is written. It fails if there is no room, before anything has been done for the answer.
func (b *Budget) Open(ctx context.Context, box policy.BoxID) (*Answer, error) {
	if !b.take(box, Least) {
		return nil, ErrFull
	}
	scope := quota.ScopeOf(ctx)
	if err := scope.Take(quota.Memory, Least); err != nil {
		b.release(box, Least)
		return nil, err
	}
	a := &Answer{budget: b, box: box, scope: scope, room: Least}
	context.AfterFunc(ctx, a.close)
	return a, nil
}

// ErrFull is returned where the budget has no room for an answer.
var ErrFull = &api.Error{Kind: api.ErrLimit, Message: "too much output is on its way to other callers; call again later, or use a call that streams (exec-stream, files/download)"}
