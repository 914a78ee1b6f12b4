package records

import (
	"context"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/archive"
	"boxgate/audit/lines"
	"boxgate/observe"
	"boxgate/policy"
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
	err = e.searches.run(ctx, api.CallerOf(ctx).Holder(), nil, func(func(audit.Event) error) (err error) {
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
	return e.searches.run(ctx, api.CallerOf(ctx).Holder(), do, func(found func(audit.Event) error) error {
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

// FollowEvents implements the Host of [boxgate/api/egress].
func (e *Decisions) FollowEvents(ctx context.Context, f api.EventFilter) (api.EventStream, error) {
	return e.audit.Subscribe(ctx, audit.Filter{Box: f.Box, Since: f.Since, Denied: f.Denied}), nil
}
