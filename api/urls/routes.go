package urls

import (
	"context"
	"reflect"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Host manages the public URLs. Errors are as in package api.
type Host interface {
	// URLs lists the box's public URLs by port, without credentials.
	URLs(ctx context.Context, id policy.BoxID) ([]api.URL, error)
	// CreateURL creates the public URL of a port. An existing one is replaced, with new credentials, and connections
	// opened with the old ones are cut. A domain that belongs to another URL, or belonged to another key until recently,
	// is an ErrConflict; one that the operator reserves is an ErrForbidden. A domain is pending until the caller has
	// proved control of it.
	CreateURL(ctx context.Context, id policy.BoxID, req api.URLRequest) (api.URL, error)
	// SignURL makes a link that permits certain requests to the public URL of a port.
	SignURL(ctx context.Context, id policy.BoxID, port uint16, req api.LinkRequest) (api.Link, error)
	// DeleteURL removes the public URL of a port and cuts its connections.
	DeleteURL(ctx context.Context, id policy.BoxID, port uint16) error
}

// Endpoints serves public URLs.
type Endpoints struct {
	Boxes   rest.Finder
	Host    Host
	History *history.History
	Bodies  strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box/{id}/preview", ID: "createUrl", Summary: "Create the public URL of a port; credentials are shown only once", Status: 201, Request: reflect.TypeFor[urlBody](), Example: `{"port":3000,"bearer_token":true}`, Response: reflect.TypeFor[urlView](), Handle: e.createURL},
		{Method: "GET", Path: "/v2/box/{id}/preview", ID: "listUrls", Summary: "The public URLs of a box", Response: reflect.TypeFor[urlsView](), Handle: e.listURLs},
		{Method: "POST", Path: "/v2/box/{id}/preview/{port}/sign", ID: "signUrl", Summary: "Sign a link to a public URL: it needs no other credential, and is limited to some paths, methods and a time", Status: 201, Request: reflect.TypeFor[signBody](), Example: `{"expires_in":3600,"path_prefix":"/report","methods":["GET"]}`, Response: reflect.TypeFor[signView](), Handle: e.signURL},
		{Method: "DELETE", Path: "/v2/box/{id}/preview/{port}", ID: "deleteUrl", Summary: "Delete a public URL and cut its connections", Response: reflect.TypeFor[rest.OK](), Handle: e.deleteURL},
	}
}
