package egress

import (
	"reflect"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/api/stream"
	"boxgate/api/strict"
	"boxgate/audit"
)

// Endpoints serves decisions about egress.
type Endpoints struct {
	Host     api.Host
	Bodies   strict.Bodies
	Stopping <-chan struct{} // closed when the server shuts down: streams end
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	items := []reflect.Type{reflect.TypeFor[audit.Event](), reflect.TypeFor[lostView](), reflect.TypeFor[gapView]()}
	return []rest.Route{
		{Method: "GET", Path: "/v2/box/{id}/egress", ID: "listBoxDecisions", Summary: "Decisions about a box", Query: reflect.TypeFor[eventsQuery](), Produces: []string{stream.NDJSON, stream.EventStream}, Items: items, Handle: e.boxEvents},
		{Method: "GET", Path: "/v2/egress", ID: "listDecisions", Summary: "Decisions about every box", Query: reflect.TypeFor[eventsQuery](), Produces: []string{stream.NDJSON, stream.EventStream}, Items: items, Handle: e.allEvents},
		{Method: "GET", Path: "/v2/box/{id}/egress/history", ID: "searchBoxDecisions", Summary: "Decisions about a box that are kept on disk, also of earlier runs of the gateway", Query: reflect.TypeFor[searchQuery](), Produces: []string{stream.NDJSON}, Items: items[:1], Handle: e.searchBox},
		{Method: "GET", Path: "/v2/egress/history", ID: "searchDecisions", Summary: "Decisions about every box that are kept on disk, also of earlier runs of the gateway", Query: reflect.TypeFor[searchAllQuery](), Produces: []string{stream.NDJSON}, Items: items[:1], Handle: e.searchAll},
		{Method: "POST", Path: "/v2/box/{id}/egress/explain", ID: "explainDecision", Summary: "How the policy in force would decide; nothing is sent", Request: reflect.TypeFor[explainBody](), Example: `{"host":"api.example.com","port":443,"protocol":"tcp"}`, Response: reflect.TypeFor[decisionView](), Handle: e.explain},
	}
}
