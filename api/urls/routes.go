package urls

import (
	"reflect"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/rest"
	"boxgate/api/strict"
)

// Endpoints serves public URLs.
type Endpoints struct {
	Host    api.Host
	History *history.History
	Bodies  strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box/{id}/preview", ID: "createUrl", Summary: "Create the public URL of a port; credentials are shown only once", Status: 201, Request: reflect.TypeFor[urlBody](), Example: `{"port":3000,"bearer_token":true}`, Response: reflect.TypeFor[urlView](), Handle: e.createURL},
		{Method: "GET", Path: "/v2/box/{id}/preview", ID: "listUrls", Summary: "The public URLs of a box", Response: reflect.TypeFor[urlsView](), Handle: e.listURLs},
		{Method: "POST", Path: "/v2/box/{id}/preview/{port}/sign", ID: "signUrl", Summary: "Sign a link to a public URL that needs no other credential, for some paths and methods, for a time", Status: 201, Request: reflect.TypeFor[signBody](), Example: `{"expires_in":3600,"path_prefix":"/report","methods":["GET"]}`, Response: reflect.TypeFor[signView](), Handle: e.signURL},
		{Method: "DELETE", Path: "/v2/box/{id}/preview/{port}", ID: "deleteUrl", Summary: "Delete a public URL and cut its connections", Response: reflect.TypeFor[rest.OK](), Handle: e.deleteURL},
	}
}
