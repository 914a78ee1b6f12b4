package records

import (
	"context"
	"sync"

	"boxgate/audit"
	quotas "boxgate/quota"
)

// searches serialises searches of the history, each of which reads all of it: one at a time for all keys that are not
// admin keys, and also one at a time for each key. Admin keys do not wait. A search gives up its turn while it passes on
// a result, so that a slow client does not block the others. Create it with [newSearches]. Safe for concurrent use.
type searches struct {
	turn chan struct{}

	mu   sync.Mutex
	keys map[string]*keySearches
}

// keySearches are the searches of one key.
type keySearches struct {
	turn chan struct{}
	n    int // running or waiting; guarded by the mu of searches
}

func newSearches() *searches {
	return &searches{turn: make(chan struct{}, 1), keys: map[string]*keySearches{}}
}

// run waits for the caller's turn, then calls search with a function that passes results to found.
func (s *searches) run(ctx context.Context, h quotas.Holder, found func(audit.Event) error, search func(func(audit.Event) error) error) error {
	if h.Operator {
		return search(found)
	}
	leave, err := s.enter(ctx, h.ID)
	if err != nil {
		return err
	}
	defer leave()
	if err := acquireTurn(ctx, s.turn); err != nil {
		return err
	}
	having := true
	defer func() {
		if having {
			<-s.turn
		}
	}()
	return search(func(e audit.Event) error {
		<-s.turn
		having = false
		if err := found(e); err != nil {
			return err
		}
		if err := acquireTurn(ctx, s.turn); err != nil {
			return err
		}
		having = true
		return nil
	})
}

// enter waits until the key has no other search running.
func (s *searches) enter(ctx context.Context, key string) (leave func(), err error) {
	s.mu.Lock()
	k := s.keys[key]
	if k == nil {
		k = &keySearches{turn: make(chan struct{}, 1)}
		s.keys[key] = k
	}
	k.n++
	s.mu.Unlock()
	forget := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if k.n--; k.n == 0 {
			delete(s.keys, key)
		}
	}
	if err := acquireTurn(ctx, k.turn); err != nil {
		forget()
		return nil, err
	}
	return func() { <-k.turn; forget() }, nil
}

// acquireTurn waits for a turn. A receive from the channel ends it.
func acquireTurn(ctx context.Context, turn chan<- struct{}) error {
	select {
	case turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
