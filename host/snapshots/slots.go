package snapshots

import (
	"context"
	"slices"
	"sync"
)

const (
	// concurrentTransfers is the maximum number of layers that are uploaded, and of ones that are downloaded, at a time.
	concurrentTransfers = 4
	// transfersOfKey is the maximum for one API key.
	transfersOfKey = 2
)

// slots are the places of concurrent transfers. A key has at most [transfersOfKey] of them, the operator always finds a place that keys do not
// take, and leaves them one. Of the keys that wait, the one with the fewest places is next. The zero value has all places. Safe for concurrent use.
type slots struct {
	mu      sync.Mutex
	used    int            // guarded by mu, like the fields below
	held    map[string]int // by holder; "" is the operator
	waiting []*applicant   // oldest first
}

type applicant struct {
	holder string
	ready  chan struct{} // closed when it has a place
}

// take waits for a place until ctx ends. done gives it back; it must be called once.
func (s *slots) take(ctx context.Context, holder string) (done func(), err error) {
	a := &applicant{holder, make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, a)
	s.serve()
	s.mu.Unlock()
	select {
	case <-a.ready:
		return func() { s.leave(a) }, nil
	case <-ctx.Done():
		s.leave(a)
		return nil, context.Cause(ctx)
	}
}

// leave ends the wait for a place, or gives the place back.
func (s *slots) leave(a *applicant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.Index(s.waiting, a); at >= 0 {
		s.waiting = slices.Delete(s.waiting, at, at+1)
		return
	}
	s.used--
	if s.held[a.holder]--; s.held[a.holder] == 0 {
		delete(s.held, a.holder)
	}
	s.serve()
}

// serve assigns free places. The caller holds mu.
func (s *slots) serve() {
	for {
		next := -1
		for i, a := range s.waiting {
			if s.admits(a.holder) && (next < 0 || s.held[a.holder] < s.held[s.waiting[next].holder]) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		a := s.waiting[next]
		s.waiting = slices.Delete(s.waiting, next, next+1)
		if s.held == nil {
			s.held = map[string]int{}
		}
		s.used++
		s.held[a.holder]++
		close(a.ready)
	}
}

// admits reports whether a holder may have another place. The caller holds mu.
func (s *slots) admits(holder string) bool {
	of, operators := s.held[holder], s.held[""]
	if holder == "" {
		return s.used < concurrentTransfers && of < concurrentTransfers-1
	}
	return s.used < concurrentTransfers && s.used-operators < concurrentTransfers-1 && of < transfersOfKey
}
