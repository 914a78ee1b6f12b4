package egress

import (
	"reflect"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/api/strict"
)

// Endpoints serves decisions about egress.
type Endpoints struct {
	Host     api.Host
	Bodies   strict.Bodies
	Stopping <-chan struct{} // closed when the server shuts down: streams end
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v2/box/{id}/egress", Summary: "Decisions about a box", Query: []string{"since", "follow", "denied", "after"}, Produces: []string{"application/x-ndjson", "text/event-stream"}, Handle: e.boxEvents},
		{Method: "GET", Path: "/v2/egress", Summary: "Decisions about every box", Query: []string{"since", "follow", "denied", "after"}, Produces: []string{"application/x-ndjson", "text/event-stream"}, Handle: e.allEvents},
		{Method: "POST", Path: "/v2/box/{id}/egress/explain", Summary: "How the policy in force would decide; nothing is sent", Request: reflect.TypeFor[explainBody](), Response: reflect.TypeFor[decisionView](), Handle: e.explain},
	}
}
