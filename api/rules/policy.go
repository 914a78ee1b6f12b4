// Package rules serves the policies and header rules of boxes: network-policy and attach-headers.
package rules

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/change"
	"boxgate/api/history"
	"boxgate/api/problem"
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
	// SetPolicy returns after the new policy, and the header rules of set if there are any, are applied everywhere in one change. If
	// ifMatch is neither nil nor the current version, the policy is unchanged and the error is ErrPrecondition.
	SetPolicy(ctx context.Context, id policy.BoxID, set api.PolicyChange, ifMatch *uint64) (api.PolicyState, error)
	// Network returns the current policy together with the header rules, in Headers.
	Network(ctx context.Context, id policy.BoxID) (api.PolicyState, error)
	// Replay compares what SetPolicy would do with the policy in force or a version of it, without a change. It has the errors of
	// SetPolicy, and ErrNotFound for a version that the history lacks.
	Replay(ctx context.Context, id policy.BoxID, set api.PolicyChange, q api.ReplayQuery, ifMatch *uint64) (api.Replay, error)
	// AddLeases temporarily allows or denies destinations, and returns after that is applied everywhere. ifMatch is as in SetPolicy.
	AddLeases(ctx context.Context, id policy.BoxID, req api.LeaseRequest, ifMatch *uint64) (api.PolicyState, error)
	// SetEnforcement has the policy audited for a time, instead of enforced, or enforced again if that is 0; it replaces an earlier audit.
	// The caller must be permitted by the configuration, else the error is an ErrForbidden. ifMatch is as in SetPolicy.
	SetEnforcement(ctx context.Context, id policy.BoxID, audit time.Duration, ifMatch *uint64) (api.PolicyState, error)
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
	// FleetHeaders returns the rules that apply to every box of every host of the fleet. Without a fleet the error is an ErrNotFound.
	FleetHeaders(ctx context.Context) (api.HeaderState, error)
	// SetFleetHeaders replaces them, and returns after that is applied to every box of every host with a lease.
	SetFleetHeaders(ctx context.Context, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error)
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
	// SetFleetPolicy is SetNamedPolicy for all hosts of the fleet: when it returns, the policy is applied on each host with a lease.
	SetFleetPolicy(ctx context.Context, name string, spec policy.Spec, ifMatch *uint64) (api.NamedPolicy, error)
	// DeleteFleetPolicy deletes a named policy of the fleet on all its hosts. The error is an ErrConflict if boxes of this host follow it. Boxes
	// of other hosts keep it as it is.
	DeleteFleetPolicy(ctx context.Context, name string, ifMatch *uint64) (api.NamedPolicy, error)
}

// Endpoints serves the rules of a box: its policy, and the headers set for it.
type Endpoints struct {
	Boxes   rest.Finder
	Host    Host
	History *history.History
	Bodies  strict.Bodies
	Secrets access.Secrets // that header rules may name
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return append(slices.Concat(e.namedRoutes(), e.enforcementRoutes(), e.networkRoutes()), []rest.Route{
		{Method: "GET", Path: "/v2/box/{id}/config/network-policy", ID: "getPolicy", Versioned: true, Summary: "The policy in force, its version as ETag", Response: reflect.TypeFor[policyView](), Handle: e.getPolicy},
		{Method: "PUT", Path: "/v2/box/{id}/config/network-policy", ID: "setPolicy", Versioned: true, Summary: "Replace the policy; answers once it is in force everywhere. With dry_run=true nothing changes, and the answer is that of replayPolicy", Query: reflect.TypeFor[putPolicyQuery](), Request: reflect.TypeFor[spec.Policy](), Example: `{"mode":"custom","allowed_domains":["api.example.com","*.example.org"],"denied_cidrs":["192.0.2.0/24"]}`, Response: reflect.TypeFor[setPolicyView](), Handle: e.putPolicy},
		{Method: "POST", Path: "/v2/box/{id}/egress/replay", ID: "replayPolicy", Versioned: true, Summary: "What a candidate policy would change of the traffic that the box has had, and of what it may reach; nothing is changed", Query: reflect.TypeFor[replayQuery](), Request: reflect.TypeFor[spec.Policy](), Example: `{"mode":"custom","allowed_domains":["api.example.com"]}`, Response: reflect.TypeFor[spec.Replay](), Handle: e.replay},
		{Method: "GET", Path: leasesPath, ID: "getLeases", Versioned: true, Summary: "The temporary entries of the policy, with the time that is left of them", Response: reflect.TypeFor[leasesView](), Handle: e.getLeases},
		{Method: "POST", Path: leasesPath, ID: "addLeases", Versioned: true, Status: http.StatusCreated, Summary: "Allow or deny destinations for a time; answers once that is in force everywhere", Request: reflect.TypeFor[leasesBody](), Example: `{"action":"allow","entries":["api.example.com:443"],"expires_in":3600}`, Response: reflect.TypeFor[leasesView](), Handle: e.addLeases},
		{Method: "DELETE", Path: leasesPath, ID: "endLeases", Versioned: true, Summary: "End temporary entries of the policy before their time", Query: reflect.TypeFor[leasesQuery](), Response: reflect.TypeFor[leasesView](), Handle: e.endLeases},
		{Method: "GET", Path: "/v2/box/{id}/config/attach-headers", ID: "getHeaders", Versioned: true, Summary: "The box's header rules, without values", Response: reflect.TypeFor[headersView](), Handle: e.getHeaders},
		{Method: "PUT", Path: "/v2/box/{id}/config/attach-headers", ID: "setHeaders", Versioned: true, Summary: "Replace the box's header rules", Request: reflect.TypeFor[headersBody](), Example: `{"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[headersView](), Handle: e.putHeaders},
		{Method: "PATCH", Path: "/v2/box/{id}/config/attach-headers", ID: "changeHeaders", Versioned: true, Summary: "Change the box's header rules for the given hosts; null removes a host's rule", Request: reflect.TypeFor[headersBody](), Example: `{"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[headersView](), Handle: e.patchHeaders},
		{Method: "GET", Path: "/v2/box/settings/attach-headers", ID: "getGlobalHeaders", Versioned: true, Summary: "The header rules of every box, without values", Query: reflect.TypeFor[globalQuery](), Response: reflect.TypeFor[headersView](), Handle: e.getGlobalHeaders},
		{Method: "PUT", Path: "/v2/box/settings/attach-headers", ID: "setGlobalHeaders", Versioned: true, Summary: "Replace the header rules of every box; with fleet=true of every host, which answers once they are in force there", Query: reflect.TypeFor[globalQuery](), Request: reflect.TypeFor[headersBody](), Example: `{"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[headersView](), Handle: e.putGlobalHeaders},
		{Method: "PATCH", Path: "/v2/box/settings/attach-headers", ID: "changeGlobalHeaders", Versioned: true, Summary: "Change the header rules of every box for the given hosts; null removes a host's rule", Query: reflect.TypeFor[globalQuery](), Request: reflect.TypeFor[headersBody](), Example: `{"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`, Response: reflect.TypeFor[headersView](), Handle: e.patchGlobalHeaders},
	}...)
}

// policyView is the current policy of a box.
type policyView struct {
	policy.Spec
	Named    string         `json:"named,omitempty" doc:"the named policy that the box follows, which says the above"`
	Version  uint64         `json:"version" doc:"also the ETag"`
	Leases   []leaseView    `json:"leases,omitempty" doc:"temporary entries, which end by themselves"`
	Warnings []problem.View `json:"warnings,omitempty"`
}

func viewPolicy(s api.PolicyState) rest.Reply {
	return rest.Reply{Body: policyView{s.Spec, s.Named, s.Version, viewLeases(s.Leases), problem.Views(s.Warnings)}, Version: s.Version}
}

func (e *Endpoints) getPolicy(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	state, err := e.Host.Policy(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	return viewPolicy(state), nil
}

// givenChange reads a change of a policy from the body of a request, with the version that it is for. A policy in a dialect that
// sets headers changes the header rules too.
func (e *Endpoints) givenChange(w http.ResponseWriter, r *http.Request) (set api.PolicyChange, match *uint64, err error) {
	data, err := e.Bodies.Read(w, r)
	if err != nil {
		return set, nil, err
	}
	if match, err = rest.IfMatch(r); err != nil {
		return set, nil, err
	}
	set, match, given, err := policyChange(data, match)
	if err == nil && given.SetsHeaders {
		set.Headers = &api.HeaderChange{Rules: given.Headers}
	}
	return set, match, err
}

func (e *Endpoints) putPolicy(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.replace(w, r, e.givenChange, viewPolicy)
}

// transformsOf points to the part of a policy in another dialect that sets headers.
func transformsOf(data []byte) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) == nil && fields["rules"] != nil {
		return "/rules"
	}
	return "/allow"
}

// takeVersion lets clients edit a policy that they read and send it back: its version becomes the precondition, its
// warnings are dropped. If-Match says the same, so the two must agree.
func takeVersion(data []byte, match *uint64) ([]byte, *uint64, error) {
	fields, err := membersOf(data)
	if err != nil {
		return nil, nil, err
	}
	return fields.takeVersion(match)
}

// members is a policy in the body of a request, with its members by name.
type members struct {
	text   []byte
	fields map[string]json.RawMessage // nil: not an object (another dialect)
}

// membersOf returns the members of a policy. The error is about invalid JSON.
func membersOf(data []byte) (members, error) {
	if err := strict.Check(data); err != nil {
		return members{}, err
	}
	m := members{text: data}
	if json.Unmarshal(data, &m.fields) != nil {
		m.fields = nil
	}
	return m, nil
}

// without returns the body without these members.
func (m members) without(names ...string) ([]byte, error) {
	for _, name := range names {
		delete(m.fields, name)
	}
	return json.Marshal(m.fields)
}

func (m members) takeVersion(match *uint64) ([]byte, *uint64, error) {
	if m.fields["version"] == nil && m.fields["warnings"] == nil {
		return m.text, match, nil
	}
	if raw := m.fields["version"]; raw != nil {
		var version uint64
		if string(raw) == "null" || json.Unmarshal(raw, &version) != nil {
			return nil, nil, problem.Invalid("/version", "must be the version that was read")
		}
		if match != nil && *match != version {
			return nil, nil, api.ErrPrecondition
		}
		match = &version
	}
	rest, err := m.without("version", "warnings")
	return rest, match, err
}

const (
	namedPath    = "/v2/box/settings/network-policies"
	oneNamedPath = namedPath + "/{name}"
)

// nameForm matches valid names of policies.
var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// namedView is a named policy.
type namedView struct {
	Name     string         `json:"name"`
	Policy   policy.Spec    `json:"policy"`
	Version  uint64         `json:"version" doc:"also the ETag"`
	Boxes    []followerView `json:"boxes" doc:"that follow it, of those that the key sees"`
	Warnings []problem.View `json:"warnings,omitempty"`
	Fleet    bool           `json:"fleet,omitempty" doc:"a policy of the fleet, which each of its hosts has in force; absent: of this host alone"`
	Resource string         `json:"resource,omitempty" doc:"the BoxgatePolicy of Kubernetes, as namespace/name, that it belongs to: only pods of the namespace follow it, and only the resource changes it"`
}

// followerView is a box that follows a named policy.
type followerView struct {
	ID   policy.BoxID `json:"id"`
	Name string       `json:"name,omitempty"`
}

// namedQuery are the query parameters of changes of named policies.
type namedQuery struct {
	Fleet bool `json:"fleet,omitempty" doc:"change the policy of the fleet, on all its hosts (docs/fleet.md); absent: of this host alone"`
}

// namedRoutes lists the endpoints of named policies.
func (e *Endpoints) namedRoutes() []rest.Route {
	one := reflect.TypeFor[namedView]()
	return []rest.Route{
		{Method: "GET", Path: namedPath, ID: "listNamedPolicies", Summary: "The named policies, by name", Response: reflect.TypeFor[[]namedView](), Handle: e.listNamed},
		{Method: "GET", Path: oneNamedPath, ID: "getNamedPolicy", Versioned: true, Summary: "A named policy, and the boxes that follow it", Response: one, Handle: e.getNamed},
		{Method: "PUT", Path: oneNamedPath, ID: "setNamedPolicy", Versioned: true, Summary: "Make a named policy, or replace it for all boxes that follow it; answers once it is in force everywhere", Query: reflect.TypeFor[namedQuery](), Request: reflect.TypeFor[spec.Policy](), Example: `{"mode":"custom","allowed_domains":["api.example.com","*.example.org"]}`, Response: one, Handle: e.putNamed},
		{Method: "DELETE", Path: oneNamedPath, ID: "deleteNamedPolicy", Versioned: true, Summary: "Delete a named policy that no box follows", Query: reflect.TypeFor[namedQuery](), Response: reflect.TypeFor[rest.OK](), Handle: e.deleteNamed},
	}
}

// viewNamed shows a named policy, with the boxes that the key of the request sees.
func viewNamed(r *http.Request, n api.NamedPolicy) namedView {
	view := namedView{Name: n.Name, Policy: n.Spec, Version: n.Version, Boxes: []followerView{}, Warnings: problem.Views(n.Warnings), Resource: n.Resource, Fleet: n.Fleet}
	for _, b := range n.Boxes {
		if api.CallerOf(r.Context()).Sees(b) {
			view.Boxes = append(view.Boxes, followerView{b.ID, b.Name})
		}
	}
	return view
}

func (e *Endpoints) listNamed(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	all, err := e.Host.NamedPolicies(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	views := []namedView{}
	for _, n := range all {
		views = append(views, viewNamed(r, n))
	}
	return rest.Reply{Body: views}, nil
}

// namedOf finds the named policy of a request.
func (e *Endpoints) namedOf(r *http.Request) (api.NamedPolicy, bool, error) {
	all, err := e.Host.NamedPolicies(r.Context())
	for _, n := range all {
		if n.Name == r.PathValue("name") {
			return n, true, err
		}
	}
	return api.NamedPolicy{}, false, err
}

func (e *Endpoints) getNamed(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	n, known, err := e.namedOf(r)
	if err != nil {
		return rest.Reply{}, err
	}
	if !known {
		return rest.Reply{}, api.Errorf(api.ErrNotFound, "there is no named policy %q", problem.Clip(r.PathValue("name")))
	}
	return rest.Reply{Body: viewNamed(r, n), Version: n.Version}, nil
}

func (e *Endpoints) putNamed(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	name := r.PathValue("name")
	if !nameForm.MatchString(name) {
		return rest.Reply{}, problem.Refuse(http.StatusUnprocessableEntity, "%q is no name for a policy; use up to 63 lower-case letters, digits and hyphens, and begin with a letter or digit", problem.Clip(name))
	}
	var query namedQuery
	if err := rest.Query(r, &query); err != nil {
		return rest.Reply{}, err
	}
	data, err := e.Bodies.Read(w, r)
	if err != nil {
		return rest.Reply{}, err
	}
	match, err := rest.IfMatch(r)
	if err != nil {
		return rest.Reply{}, err
	}
	if data, match, err = takeVersion(data, match); err != nil {
		return rest.Reply{}, err
	}
	given, err := spec.ParsePolicy(data)
	switch {
	case err != nil:
		return rest.Reply{}, err
	case given.Named != "":
		return rest.Reply{}, problem.Invalid("/named", "a named policy cannot follow another; write out what it allows")
	case len(given.Headers) > 0:
		return rest.Reply{}, problem.Invalid(transformsOf(data), "a named policy has no header rules; set them by PUT config/attach-headers of the boxes, or of settings")
	}
	set := e.Host.SetNamedPolicy
	if query.Fleet {
		set = e.Host.SetFleetPolicy
	}
	after, err := set(r.Context(), name, given.Spec, match)
	if err != nil {
		return rest.Reply{}, err
	}
	for _, b := range after.Boxes {
		e.History.Log(b.ID, "info", "user", "the named policy %q, which the box follows, set to %s, version %d", name, after.Spec.Mode, after.Version)
	}
	return rest.Reply{Body: viewNamed(r, after), Version: after.Version, Change: change.OfNamed(after)}, nil
}

func (e *Endpoints) deleteNamed(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var query namedQuery
	if err := rest.Query(r, &query); err != nil {
		return rest.Reply{}, err
	}
	match, err := rest.IfMatch(r)
	if err != nil {
		return rest.Reply{}, err
	}
	remove := e.Host.DeleteNamedPolicy
	if query.Fleet {
		remove = e.Host.DeleteFleetPolicy
	}
	was, err := remove(r.Context(), r.PathValue("name"), match)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: rest.OK{OK: true}, Change: change.OfNamedDeleted(was)}, nil
}
