package quota

import (
	"context"
	"time"
)

// How many requests may wait at the same time, in total and per holder.
const (
	maxWaiters          = 64
	maxWaitersPerHolder = 8
)

// waiters counts the waiting requests. Guarded by the book's mu.
type waiters struct {
	all   int
	of    map[id]int
	freed chan struct{} // closed when something is released; nil: no request waits
}

// addWaiter counts one more request of a holder; false if too many wait already.
func (w *waiters) addWaiter(h id) bool {
	if w.all >= maxWaiters || w.of[h] >= maxWaitersPerHolder {
		return false
	}
	if w.of == nil {
		w.of = map[id]int{}
	}
	if w.freed == nil {
		w.freed = make(chan struct{})
	}
	w.all++
	w.of[h]++
	return true
}

func (w *waiters) removeWaiter(h id) {
	w.all--
	if w.of[h]--; w.of[h] == 0 {
		delete(w.of, h)
	}
	if w.all == 0 {
		w.freed = nil
	}
}

// wakeAll makes all waiting requests check again.
func (w *waiters) wakeAll() {
	if w.freed != nil {
		close(w.freed)
		w.freed = make(chan struct{})
	}
}

// AcquireWithin is [Scope.Acquire] for a request that can wait for others to release something, until ctx is done or patience is
// over. It fails immediately if no release would be enough, or if too many requests wait already.
func (s *Scope) AcquireWithin(ctx context.Context, patience time.Duration, k Kind, n int64) error {
	if s == nil || n == 0 {
		return nil
	}
	s.mu.Lock()
	own := s.used[k]
	s.mu.Unlock()
	if err := s.book.acquireWithin(ctx, patience, s.holder, k, own, n); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used[k] += n; s.refs == 0 { // the scope has ended, so release now
		s.book.release(s.holder, k, n)
	}
	return nil
}

// acquireWithin takes n for a request that already has own of the kind.
func (b *Book) acquireWithin(ctx context.Context, patience time.Duration, h Holder, k Kind, own, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.checkLocked(h, k, b.usedLocked(h, k), n)
	if err != nil && patience > 0 && b.fitsAloneLocked(h, k, own+n) && b.waiters.addWaiter(h.key()) {
		err = b.waitLocked(ctx, patience, h, k, n)
		b.waiters.removeWaiter(h.key())
	}
	if err != nil {
		b.refused[k]++
		return err
	}
	b.addLocked(h, k, n)
	return nil
}

// waitLocked waits until n more fit. If that takes too long it returns why they do not. It unlocks the book while it waits.
func (b *Book) waitLocked(ctx context.Context, patience time.Duration, h Holder, k Kind, n int64) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for over := false; ; {
		err := b.checkLocked(h, k, b.usedLocked(h, k), n)
		if err == nil || over {
			return err
		}
		freed := b.waiters.freed
		b.mu.Unlock()
		select {
		case <-freed:
		case <-timer.C:
			over = true
		case <-ctx.Done():
			over = true
		}
		b.mu.Lock()
	}
}

// fitsAloneLocked reports whether n would fit if no other request used any of the kind.
func (b *Book) fitsAloneLocked(h Holder, k Kind, n int64) bool {
	limit, total := b.limitLocked(h, k), b.totals[k]
	if !h.Operator {
		total = shareOf(total) / 2
	}
	return (limit == 0 || n <= limit) && (b.totals[k] == 0 || n <= total)
}
