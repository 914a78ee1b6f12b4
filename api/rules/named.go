package rules

import (
	"net/http"
	"reflect"
	"regexp"

	"boxgate/api"
	"boxgate/api/change"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/policy"
)

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
}

// followerView is a box that follows a named policy.
type followerView struct {
	ID   policy.BoxID `json:"id"`
	Name string       `json:"name,omitempty"`
}

// namedRoutes lists the endpoints of named policies.
func (e *Endpoints) namedRoutes() []rest.Route {
	one := reflect.TypeFor[namedView]()
	return []rest.Route{
		{Method: "GET", Path: namedPath, ID: "listNamedPolicies", Summary: "The named policies, by name", Response: reflect.TypeFor[[]namedView](), Handle: e.listNamed},
		{Method: "GET", Path: oneNamedPath, ID: "getNamedPolicy", Versioned: true, Summary: "A named policy, and the boxes that follow it", Response: one, Handle: e.getNamed},
		{Method: "PUT", Path: oneNamedPath, ID: "setNamedPolicy", Versioned: true, Summary: "Make a named policy, or replace it for all boxes that follow it; answers once it is in force everywhere", Request: reflect.TypeFor[spec.Policy](), Example: `{"mode":"custom","allowed_domains":["api.example.com","*.example.org"]}`, Response: one, Handle: e.putNamed},
		{Method: "DELETE", Path: oneNamedPath, ID: "deleteNamedPolicy", Versioned: true, Summary: "Delete a named policy that no box follows", Response: reflect.TypeFor[rest.OK](), Handle: e.deleteNamed},
	}
}

// viewNamed shows a named policy, with the boxes that the key of the request sees.
func viewNamed(r *http.Request, n api.NamedPolicy) namedView {
	view := namedView{Name: n.Name, Policy: n.Spec, Version: n.Version, Boxes: []followerView{}, Warnings: problem.Views(n.Warnings)}
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
	after, err := e.Host.SetNamedPolicy(r.Context(), name, given.Spec, match)
	if err != nil {
		return rest.Reply{}, err
	}
	for _, b := range after.Boxes {
		e.History.Log(b.ID, "info", "user", "the named policy %q, which the box follows, set to %s, version %d", name, after.Spec.Mode, after.Version)
	}
	return rest.Reply{Body: viewNamed(r, after), Version: after.Version, Change: change.OfNamed(after)}, nil
}

func (e *Endpoints) deleteNamed(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	match, err := rest.IfMatch(r)
	if err != nil {
		return rest.Reply{}, err
	}
	name := r.PathValue("name")
	was, err := e.Host.DeleteNamedPolicy(r.Context(), name, match)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: rest.OK{OK: true}, Change: change.OfNamedDeleted(was)}, nil
}
