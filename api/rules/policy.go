package rules

import (
	"encoding/json"
	"fmt"
	"net/http"

	"boxgate/api"
	"boxgate/api/change"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
	"boxgate/policy"
)

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

func (e *Endpoints) putPolicy(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
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
	data, match, err = takeVersion(data, match)
	if err != nil {
		return rest.Reply{}, err
	}
	set := api.PolicyChange{}
	data, set.Keep, err = takeLeases(data)
	if err != nil {
		return rest.Reply{}, err
	}
	given, err := spec.ParsePolicy(data)
	if err != nil {
		return rest.Reply{}, err
	}
	set.Spec, set.Named = given.Spec, given.Named
	if len(given.Headers) > 0 {
		return rest.Reply{}, problem.Invalid(transformsOf(data), "on a running box, transforms are set by PUT config/attach-headers; leave them out here")
	}
	state, err := e.Host.SetPolicy(r.Context(), box.ID, set, match)
	if err != nil {
		return rest.Reply{}, err
	}
	what := string(state.Spec.Mode)
	if state.Named != "" {
		what = fmt.Sprintf("the named policy %q", state.Named)
	}
	e.History.Log(box.ID, "info", "user", "network policy set to %s, version %d", what, state.Version)
	reply := viewPolicy(state)
	reply.Change = change.OfPolicy(box.ID, state)
	return reply, nil
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
	var any json.RawMessage
	if err := strict.Unmarshal(data, &any); err != nil {
		return nil, nil, err
	}
	var fields map[string]json.RawMessage
	isObject := json.Unmarshal(data, &fields) == nil
	if !isObject || fields["version"] == nil && fields["warnings"] == nil {
		return data, match, nil // not an object (another dialect), or without these members
	}
	if raw := fields["version"]; raw != nil {
		var version uint64
		if string(raw) == "null" || json.Unmarshal(raw, &version) != nil {
			return nil, nil, problem.Invalid("/version", "must be the version that was read")
		}
		if match != nil && *match != version {
			return nil, nil, api.ErrPrecondition
		}
		match = &version
	}
	delete(fields, "version")
	delete(fields, "warnings")
	rest, err := json.Marshal(fields)
	return rest, match, err
}
