package host

import (
	"context"

	"boxgate/api"
	"boxgate/audit"
)

// events reads the decisions of the gateway.
type events struct{ audit *audit.Log }

// RecentEvents implements [api.Host].
func (e *events) RecentEvents(_ context.Context, f api.EventFilter) (api.PastEvents, error) {
	which := audit.Filter{Box: f.Box, Since: f.Since, After: f.After, Denied: f.Denied}
	missing := e.audit.Missing(which)
	return api.PastEvents{Events: e.audit.Recent(which), Run: e.audit.ID(), Missing: missing}, nil
}

// FollowEvents implements [api.Host].
func (e *events) FollowEvents(ctx context.Context, f api.EventFilter) (api.EventStream, error) {
	return e.audit.Subscribe(ctx, audit.Filter{Box: f.Box, Since: f.Since, Denied: f.Denied}), nil
}
