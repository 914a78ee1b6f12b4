// Package records reads the records of the gateway: the [Decisions] about the traffic of boxes, in memory and on disk,
// and the [Trail] of changes made through the API.
package records

import (
	"context"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/archive"
	"boxgate/audit/lines"
	"boxgate/observe"
	"boxgate/policy"
	quotas "boxgate/quota"
)

// Decisions reads the decisions of the gateway.
type Decisions struct {
	audit     *audit.Log
	past      *archive.Store // nil: no history on disk
	pastLines *lines.Writer  // buffered input of past
	observed  *observe.Log   // nil: disabled
	searches  *searches
}

// NewDecisions returns a reader of log. store and kept are nil without a history on disk, observed without observations.
func NewDecisions(log *audit.Log, store *archive.Store, kept *lines.Writer, observed *observe.Log) *Decisions {
	return &Decisions{audit: log, past: store, pastLines: kept, observed: observed, searches: newSearches()}
}

// Observations implements the Host of [boxgate/api/egress].
func (e *Decisions) Observations(ctx context.Context, id policy.BoxID) (s observe.Summary, err error) {
	if e.observed == nil {
		return s, api.Errorf(api.ErrConflict, "this gateway keeps no observations; log.observations.size gives it some")
	}
	err = runSearch(ctx, e.searches, api.CallerOf(ctx).Holder(), nil, func(func(audit.Event) error) (err error) {
		s, err = e.observed.Of(id)
		return err
	})
	return s, err
}

// SearchEvents implements the Host of [boxgate/api/egress].
func (e *Decisions) SearchEvents(ctx context.Context, f api.EventSearch, begin func(whole time.Time), do func(audit.Event) error) error {
	if e.past == nil {
		return api.Errorf(api.ErrConflict, "this gateway keeps no history of decisions; log.history.size gives it one")
	}
	which := archive.Filter{Box: f.Box, Since: f.Since, Until: f.Until, Host: f.Host, Reason: f.Reason, Denied: f.Denied}
	return runSearch(ctx, e.searches, api.CallerOf(ctx).Holder(), do, func(found func(audit.Event) error) error {
		_ = e.pastLines.Sync() // include the latest decisions; a failed write loses them
		begin(e.past.CompleteSince(f.Box))
		return e.past.Search(ctx, which, found)
	})
}

// RecentEvents implements the Host of [boxgate/api/egress].
func (e *Decisions) RecentEvents(_ context.Context, f api.EventFilter) (api.PastEvents, error) {
	which := audit.Filter{Box: f.Box, Since: f.Since, After: f.After, Denied: f.Denied}
	missing := e.audit.Missing(which)
	return api.PastEvents{Events: e.audit.Recent(which), Run: e.audit.ID(), Missing: missing}, nil
}

// Activity implements the Host of [boxgate/api/egress].
func (e *Decisions) Activity(context.Context) (map[policy.BoxID]audit.Activity, error) {
	return e.audit.Activity(), nil
}

// FollowEvents implements the Host of [boxgate/api/egress].
func (e *Decisions) FollowEvents(ctx context.Context, f api.EventFilter) (api.EventStream, error) {
	return e.audit.Subscribe(ctx, audit.Filter{Box: f.Box, Since: f.Since, Denied: f.Denied}), nil
}

// searches serialises searches of the history or the trail, which read all of it: one at a time for all keys that are not
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

// runSearch waits for the caller's turn, then calls search with a function that passes results to found.
func runSearch[T any](ctx context.Context, s *searches, h quotas.Holder, found func(T) error, search func(func(T) error) error) error {
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
	return search(func(result T) error {
		<-s.turn
		having = false
		if err := found(result); err != nil {
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
