package boxes

import (
	"reflect"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/rest"
	"boxgate/api/strict"
)

// Endpoints serves the boxes.
type Endpoints struct {
	Host    api.Host
	History *history.History
	Bodies  strict.Bodies
	// HasSecret reports whether header rules may name a secret.
	HasSecret func(name string) bool
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box", Summary: "Create a box", Status: 201, Request: reflect.TypeFor[createBody](), Response: reflect.TypeFor[boxView](), Handle: e.createBox},
		{Method: "POST", Path: "/v2/box/attach", Summary: "Attach an existing network namespace, process or container", Status: 201, Request: reflect.TypeFor[attachBody](), Response: reflect.TypeFor[boxView](), Handle: e.attachBox},
		{Method: "POST", Path: "/v2/box/{id}/detach", Summary: "Take an attached box off the network and forget it", Response: reflect.TypeFor[deletedView](), Handle: e.detachBox},
		{Method: "GET", Path: "/v2/box", Summary: "List the boxes", Query: []string{"label"}, Response: reflect.TypeFor[[]boxView](), Handle: e.listBoxes},
		{Method: "DELETE", Path: "/v2/box", Summary: "Delete several boxes; if one is unknown, none is deleted", Request: reflect.TypeFor[deleteBody](), Response: reflect.TypeFor[deletedView](), Handle: e.deleteBoxes},
		{Method: "GET", Path: "/v2/box/{id}", Summary: "One box, by ID or name", Response: reflect.TypeFor[boxView](), Handle: e.getBox},
		{Method: "DELETE", Path: "/v2/box/{id}", Summary: "Delete a box", Response: reflect.TypeFor[deletedView](), Handle: e.deleteBox},
		{Method: "GET", Path: "/v2/box/{id}/status", Summary: "The state of a box", Response: reflect.TypeFor[statusView](), Handle: e.getStatus},
		{Method: "POST", Path: "/v2/box/{id}/selftest", Summary: "Attack the gateway from inside the box; answers with a scorecard after a few seconds", Response: reflect.TypeFor[selfTestView](), Handle: e.selfTest},
	}
}
