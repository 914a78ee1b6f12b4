package quota

import (
	"context"
	"sync"
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
