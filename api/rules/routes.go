package rules

import (
	"reflect"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
)

// Endpoints serves the rules of a box: its policy, and the headers set for it.
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
		{Method: "GET", Path: "/v2/box/{id}/config/network-policy", ID: "getPolicy", Versioned: true, Summary: "The policy in force, its version as ETag", Response: reflect.TypeFor[policyView](), Handle: e.getPolicy},
		{Method: "PUT", Path: "/v2/box/{id}/config/network-policy", ID: "setPolicy", Versioned: true, Summary: "Replace the policy; answers once it is in force everywhere", Request: reflect.TypeFor[spec.Policy](), Example: `{"mode":"custom","allowed_domains":["api.example.com","*.example.org"],"denied_cidrs":["192.0.2.0/24"]}`, Response: reflect.TypeFor[policyView](), Handle: e.putPolicy},
		{Method: "GET", Path: "/v2/box/{id}/config/attach-headers", ID: "getHeaders", Versioned: true, Summary: "The box's header rules, without values", Response: reflect.TypeFor[headersView](), Handle: e.getHeaders},
		{Method: "PUT", Path: "/v2/box/{id}/config/attach-headers", ID: "setHeaders", Versioned: true, Summary: "Replace the box's header rules", Request: reflect.TypeFor[headersBody](), Example: `{"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[headersView](), Handle: e.putHeaders},
		{Method: "PATCH", Path: "/v2/box/{id}/config/attach-headers", ID: "changeHeaders", Versioned: true, Summary: "Change the box's header rules for the given hosts; null removes a host's rule", Request: reflect.TypeFor[headersBody](), Example: `{"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[headersView](), Handle: e.patchHeaders},
		{Method: "GET", Path: "/v2/box/settings/attach-headers", ID: "getGlobalHeaders", Versioned: true, Summary: "The header rules of every box, without values", Response: reflect.TypeFor[headersView](), Handle: e.getGlobalHeaders},
		{Method: "PUT", Path: "/v2/box/settings/attach-headers", ID: "setGlobalHeaders", Versioned: true, Summary: "Replace the header rules of every box", Request: reflect.TypeFor[headersBody](), Example: `{"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[headersView](), Handle: e.putGlobalHeaders},
		{Method: "PATCH", Path: "/v2/box/settings/attach-headers", ID: "changeGlobalHeaders", Versioned: true, Summary: "Change the header rules of every box for the given hosts; null removes a host's rule", Request: reflect.TypeFor[headersBody](), Example: `{"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[headersView](), Handle: e.patchGlobalHeaders},
	}
}
