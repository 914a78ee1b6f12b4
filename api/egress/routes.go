package egress

import (
	"context"
	"net/netip"
	"reflect"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/api/stream"
	"boxgate/api/strict"
	"boxgate/audit"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Host gives access to the decisions about the traffic of boxes. Errors are as in package api.
type Host interface {
	// RecentEvents returns the decisions still in memory.
	RecentEvents(ctx context.Context, f api.EventFilter) (api.PastEvents, error)
	// FollowEvents delivers new decisions until ctx ends.
	FollowEvents(ctx context.Context, f api.EventFilter) (api.EventStream, error)
	// SearchEvents calls begin with the time since which the log of the filter's boxes is complete, and then do for each
	// matching decision on disk, oldest first. If the gateway keeps no decisions on disk, the error is an ErrConflict.
	SearchEvents(ctx context.Context, f api.EventSearch, begin func(whole time.Time), do func(audit.Event) error) error
	// Observations returns the sums of the decisions about a box. If the gateway keeps none, the error is an ErrConflict.
	Observations(ctx context.Context, id policy.BoxID) (observe.Summary, error)
}

// Rules explains decisions.
type Rules interface {
	// Explain returns the decision of the active policy without sending a request. knowsQuery is set if an empty query in
	// req means that the request has no query.
	Explain(ctx context.Context, id policy.BoxID, req policy.Request, knowsQuery bool) (policy.Explanation, error)
	// Resolve returns the addresses, not yet decided on, from which the gateway would answer a query of the box for a name, without
	// granting them. looked is false if the gateway would not look the name up; err is then about the box, otherwise about the look-up.
	Resolve(ctx context.Context, id policy.BoxID, n name.Name) (addrs []netip.Addr, looked bool, err error)
}

// Endpoints serves decisions about egress.
type Endpoints struct {
	Boxes    rest.Finder
	Host     Host
	Rules    Rules
	Bodies   strict.Bodies
	Stopping <-chan struct{} // closed when the server shuts down, which ends streams
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	items := []reflect.Type{reflect.TypeFor[audit.Event](), reflect.TypeFor[lostView](), reflect.TypeFor[gapView]()}
	return []rest.Route{
		{Method: "GET", Path: "/v2/box/{id}/egress", ID: "listBoxDecisions", Summary: "Decisions about a box", Query: reflect.TypeFor[eventsQuery](), Produces: []string{stream.NDJSON, stream.EventStream}, Items: items, Handle: e.boxEvents},
		{Method: "GET", Path: "/v2/egress", ID: "listDecisions", Summary: "Decisions about every box", Query: reflect.TypeFor[eventsQuery](), Produces: []string{stream.NDJSON, stream.EventStream}, Items: items, Handle: e.allEvents},
		{Method: "GET", Path: "/v2/box/{id}/egress/history", ID: "searchBoxDecisions", Summary: "Decisions on disk about a box, including those of earlier runs of the gateway", Query: reflect.TypeFor[searchQuery](), Produces: []string{stream.NDJSON}, Items: items[:1], Handle: e.searchBox},
		{Method: "GET", Path: "/v2/egress/history", ID: "searchDecisions", Summary: "Decisions on disk about every box, including those of earlier runs of the gateway", Query: reflect.TypeFor[searchAllQuery](), Produces: []string{stream.NDJSON}, Items: items[:1], Handle: e.searchAll},
		{Method: "GET", Path: "/v2/box/{id}/egress/observations", ID: "listObservations", Summary: "The traffic of a box, summed up by destination, request and decision", Query: reflect.TypeFor[observationsQuery](), Response: reflect.TypeFor[observationsView](), Handle: e.observations},
		{Method: "POST", Path: "/v2/box/{id}/egress/explain", ID: "explainDecision", Summary: "The decision of the active policy; nothing is sent to the destination", Request: reflect.TypeFor[explainBody](), Example: `{"host":"api.example.com","port":443,"protocol":"tcp"}`, Response: reflect.TypeFor[decisionView](), Handle: e.explain},
	}
}
