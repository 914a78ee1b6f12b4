package quota

import (
	"context"
	"sync"
	"time"
)

// Scope is the usage of one request and of the work that it has started, such as a command that continues after its client
// has disconnected. All of it is released when the last of them has ended. The methods of a nil Scope are no-ops and never
// fail. Safe for concurrent use.
type Scope struct {
	book   *Book
	holder Holder

	mu   sync.Mutex
	refs int
	used Limits
}

// Open returns the scope of a new request. end must be called when the request ends.
func (b *Book) Open(h Holder) (s *Scope, end func()) {
	s = &Scope{book: b, holder: h, refs: 1}
	return s, sync.OnceFunc(s.dropRef)
}

// Holder returns the holder of the scope.
func (s *Scope) Holder() Holder {
	if s == nil {
		return Holder{}
	}
	return s.holder
}

// Book returns the book that the scope takes from; nil for a nil scope.
func (s *Scope) Book() *Book {
	if s == nil {
		return nil
	}
	return s.book
}

// Extend extends the scope until end is called, even beyond the end of its request.
func (s *Scope) Extend() (end func()) {
	if s == nil {
		return func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs++; s.refs == 1 { // the request ended before the work called Extend
		for k, n := range s.used {
			if n != 0 {
				s.book.addUnchecked(s.holder, Kind(k), n)
			}
		}
	}
	return sync.OnceFunc(s.dropRef)
}

func (s *Scope) dropRef() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs--; s.refs > 0 {
		return
	}
	for k, n := range s.used {
		if n != 0 {
			s.book.release(s.holder, Kind(k), n)
		}
	}
}

// Acquire takes n of a kind until the scope ends. It fails as [Book.Acquire] does.
func (s *Scope) Acquire(k Kind, n int64) error {
	if s == nil || n == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.book.acquire(s.holder, k, n); err != nil {
		return err
	}
	if s.used[k] += n; s.refs == 0 { // the scope has ended, so release now
		s.book.release(s.holder, k, n)
	}
	return nil
}

// Release releases n of a kind before the scope ends, or all if it has less.
func (s *Scope) Release(k Kind, n int64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, s.used[k])
	if s.used[k] -= n; n != 0 && s.refs > 0 {
		s.book.release(s.holder, k, n)
	}
}

// Used returns what the scope has taken of a kind.
func (s *Scope) Used(k Kind) int64 {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used[k]
}

type scopeKey struct{}

// WithScope returns a context with a scope.
func WithScope(ctx context.Context, s *Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

// ScopeOf returns the scope of a request; nil if it has no scope.
func ScopeOf(ctx context.Context) *Scope {
	s, _ := ctx.Value(scopeKey{}).(*Scope)
	return s
}

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
