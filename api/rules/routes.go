package rules

import (
	"context"
	"net/http"
	"reflect"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Host keeps the rules of boxes. Errors are as in package api.
type Host interface {
	Policies
	Headers
	Named
}

// Policies are the policies of single boxes.
type Policies interface {
	// Policy returns the current policy.
	Policy(ctx context.Context, id policy.BoxID) (api.PolicyState, error)
	// SetPolicy returns after the new policy is applied everywhere. If ifMatch is neither nil nor the current version, the policy is
	// unchanged and the error is ErrPrecondition.
	SetPolicy(ctx context.Context, id policy.BoxID, set api.PolicyChange, ifMatch *uint64) (api.PolicyState, error)
	// AddLeases temporarily allows or denies destinations, and returns after that is applied everywhere. ifMatch is as in SetPolicy.
	AddLeases(ctx context.Context, id policy.BoxID, req api.LeaseRequest, ifMatch *uint64) (api.PolicyState, error)
	// EndLeases ends leases before they expire. If which selects none, the error is an ErrNotFound.
	EndLeases(ctx context.Context, id policy.BoxID, which func(api.LeaseEntry) bool, ifMatch *uint64) (api.PolicyState, error)
}

// Headers are the header rules.
type Headers interface {
	// Headers returns the box's own header rules.
	Headers(ctx context.Context, id policy.BoxID) (api.HeaderState, error)
	// SetHeaders replaces the box's own header rules, with ifMatch as in SetPolicy.
	SetHeaders(ctx context.Context, id policy.BoxID, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error)
	// GlobalHeaders returns the rules that apply to every box.
	GlobalHeaders(ctx context.Context) (api.HeaderState, error)
	// SetGlobalHeaders replaces them, and returns after that is applied to every box.
	SetGlobalHeaders(ctx context.Context, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error)
}

// Named are the policies that boxes follow by name.
type Named interface {
	// NamedPolicies returns the named policies, by name.
	NamedPolicies(ctx context.Context) ([]api.NamedPolicy, error)
	// SetNamedPolicy makes a named policy, or replaces it for all boxes that follow it. When it returns, the policy is applied to all of
	// them, or after an error to none. ifMatch is as in SetPolicy; the version of a policy that does not exist is 0.
	SetNamedPolicy(ctx context.Context, name string, spec policy.Spec, ifMatch *uint64) (api.NamedPolicy, error)
	// DeleteNamedPolicy deletes a named policy and returns it. If boxes follow it, the error is an ErrConflict that names them.
	DeleteNamedPolicy(ctx context.Context, name string, ifMatch *uint64) (api.NamedPolicy, error)
}

// Endpoints serves the rules of a box: its policy, and the headers set for it.
type Endpoints struct {
	Boxes   rest.Finder
	Host    Host
	History *history.History
	Bodies  strict.Bodies
	// HasSecret reports whether header rules may name a secret.
	HasSecret func(name string) bool
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return append(e.namedRoutes(), []rest.Route{
		{Method: "GET", Path: "/v2/box/{id}/config/network-policy", ID: "getPolicy", Versioned: true, Summary: "The policy in force, its version as ETag", Response: reflect.TypeFor[policyView](), Handle: e.getPolicy},
		{Method: "PUT", Path: "/v2/box/{id}/config/network-policy", ID: "setPolicy", Versioned: true, Summary: "Replace the policy; answers once it is in force everywhere", Request: reflect.TypeFor[spec.Policy](), Example: `{"mode":"custom","allowed_domains":["api.example.com","*.example.org"],"denied_cidrs":["192.0.2.0/24"]}`, Response: reflect.TypeFor[policyView](), Handle: e.putPolicy},
		{Method: "GET", Path: leasesPath, ID: "getLeases", Versioned: true, Summary: "The temporary entries of the policy, with the time that is left of them", Response: reflect.TypeFor[leasesView](), Handle: e.getLeases},
		{Method: "POST", Path: leasesPath, ID: "addLeases", Versioned: true, Status: http.StatusCreated, Summary: "Allow or deny destinations for a time; answers once that is in force everywhere", Request: reflect.TypeFor[leasesBody](), Example: `{"action":"allow","entries":["api.example.com:443"],"expires_in":3600}`, Response: reflect.TypeFor[leasesView](), Handle: e.addLeases},
		{Method: "DELETE", Path: leasesPath, ID: "endLeases", Versioned: true, Summary: "End temporary entries of the policy before their time", Query: reflect.TypeFor[leasesQuery](), Response: reflect.TypeFor[leasesView](), Handle: e.endLeases},
		{Method: "GET", Path: "/v2/box/{id}/config/attach-headers", ID: "getHeaders", Versioned: true, Summary: "The box's header rules, without values", Response: reflect.TypeFor[headersView](), Handle: e.getHeaders},
		{Method: "PUT", Path: "/v2/box/{id}/config/attach-headers", ID: "setHeaders", Versioned: true, Summary: "Replace the box's header rules", Request: reflect.TypeFor[headersBody](), Example: `{"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[headersView](), Handle: e.putHeaders},
		{Method: "PATCH", Path: "/v2/box/{id}/config/attach-headers", ID: "changeHeaders", Versioned: true, Summary: "Change the box's header rules for the given hosts; null removes a host's rule", Request: reflect.TypeFor[headersBody](), Example: `{"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[headersView](), Handle: e.patchHeaders},
		{Method: "GET", Path: "/v2/box/settings/attach-headers", ID: "getGlobalHeaders", Versioned: true, Summary: "The header rules of every box, without values", Response: reflect.TypeFor[headersView](), Handle: e.getGlobalHeaders},
		{Method: "PUT", Path: "/v2/box/settings/attach-headers", ID: "setGlobalHeaders", Versioned: true, Summary: "Replace the header rules of every box", Request: reflect.TypeFor[headersBody](), Example: `{"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[headersView](), Handle: e.putGlobalHeaders},
		{Method: "PATCH", Path: "/v2/box/settings/attach-headers", ID: "changeGlobalHeaders", Versioned: true, Summary: "Change the header rules of every box for the given hosts; null removes a host's rule", Request: reflect.TypeFor[headersBody](), Example: `{"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[headersView](), Handle: e.patchGlobalHeaders},
	}...)
}
