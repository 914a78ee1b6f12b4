// Package settings serves settings other than rules: the environment of new boxes, and the labels, model, custom harness,
// skills, limits and source addresses of a box.
package settings

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"

	"boxgate/api"
	"boxgate/api/change"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Host stores the settings. Errors are as in package api.
type Host interface {
	// Environment returns the variables of new boxes.
	Environment(ctx context.Context) (map[string]name.Secret, error)
	// SetEnvironment replaces all variables. A variable that is a placeholder in a global header rule is a
	// *document.InvalidError.
	SetEnvironment(ctx context.Context, vars map[string]name.Secret) error
	// SetVariable sets one variable. Exceeding the limit is a *document.InvalidError.
	SetVariable(ctx context.Context, name string, value name.Secret) error
	// DeleteVariable removes one variable.
	DeleteVariable(ctx context.Context, name string) error
	// Configure changes a box's configuration. If change returns an error, the configuration stays as it was. Changes of
	// the same box are serialized.
	Configure(ctx context.Context, id policy.BoxID, change func(*api.Configuration) error) (api.Box, error)
}

// Rules changes the limits and source addresses of a box.
type Rules interface {
	// SetSource changes the source addresses of a box. When it returns, all its traffic leaves from them and open
	// connections were cut. An address that the operator does not offer is a *document.InvalidError.
	SetSource(ctx context.Context, id policy.BoxID, source policy.Source) (api.Box, error)
	// SetLimits changes the limits of a box and returns once they apply. If change returns an error, the limits stay as
	// they were.
	SetLimits(ctx context.Context, id policy.BoxID, change func(api.BoxLimits) (api.BoxLimits, error)) (api.Box, error)
}

// Headers changes the header rules of a box.
type Headers interface {
	// Headers returns the header rules of a box.
	Headers(ctx context.Context, id policy.BoxID) (api.HeaderState, error)
	// SetHeaders replaces the header rules of a box, and returns once they apply. If ifMatch is not the version in force, the
	// error is [api.ErrPrecondition].
	SetHeaders(ctx context.Context, id policy.BoxID, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error)
}

// Boxes finds the boxes.
type Boxes interface {
	rest.Finder
	// HostLimits returns the configured limits of every box.
	HostLimits() policy.Limits
	// HostModelLimit returns the configured limit of models of every box.
	HostModelLimit() llm.Limit
}

// Endpoints serves the settings.
type Endpoints struct {
	Boxes   Boxes
	Host    Host
	Rules   Rules
	Headers Headers
	History *history.History
	Bodies  strict.Bodies
	Meters  llm.Meters // of the servers of agents' models
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v2/box/settings/env", ID: "getEnvironment", Summary: "The environment variables of new boxes, without values", Response: reflect.TypeFor[envView](), Handle: e.getEnv},
		{Method: "PUT", Path: "/v2/box/settings/env", ID: "setEnvironment", Summary: "Replace the environment variables of new boxes", Request: reflect.TypeFor[envBody](), Example: `{"env_vars":{"LOG_LEVEL":"info"}}`, Response: reflect.TypeFor[envView](), Handle: e.putEnv},
		{Method: "PUT", Path: "/v2/box/settings/env/{key}", ID: "setVariable", Summary: "Set an environment variable of new boxes", Request: reflect.TypeFor[variableBody](), Example: `{"value":"info"}`, Response: reflect.TypeFor[rest.OK](), Handle: e.putVariable},
		{Method: "DELETE", Path: "/v2/box/settings/env/{key}", ID: "deleteVariable", Summary: "Remove an environment variable of new boxes", Response: reflect.TypeFor[rest.OK](), Handle: e.deleteVariable},
		{Method: "POST", Path: "/v2/box/{id}/config/labels", ID: "addLabel", Summary: "Add a label to a box", Request: reflect.TypeFor[labelBody](), Example: `{"label":"team-a"}`, Response: reflect.TypeFor[labelsView](), Handle: e.addLabel},
		{Method: "DELETE", Path: "/v2/box/{id}/config/labels/{label}", ID: "removeLabel", Summary: "Remove a label from a box", Response: reflect.TypeFor[labelsView](), Handle: e.removeLabel},
		{Method: "PUT", Path: "/v2/box/{id}/config/metadata", ID: "setMetadata", Summary: "Replace the metadata of a box", Request: reflect.TypeFor[metadataBody](), Example: `{"metadata":{"user":"42","stage":"test"}}`, Response: reflect.TypeFor[metadataBody](), Handle: e.putMetadata},
		{Method: "PUT", Path: "/v2/box/{id}/config/source-addresses", ID: "setSource", Summary: "Replace the host addresses that a box's traffic leaves from; open connections are cut", Request: reflect.TypeFor[sourceBody](), Example: `{"source_addresses":["203.0.113.7","2001:db8::7"]}`, Response: reflect.TypeFor[sourceView](), Handle: e.putSource},
		{Method: "GET", Path: "/v2/box/{id}/config/limits", ID: "getLimits", Summary: "The limits of a box", Response: reflect.TypeFor[limitsView](), Handle: e.getLimits},
		{Method: "PATCH", Path: "/v2/box/{id}/config/limits", ID: "changeLimits", Summary: "Change the limits of a box; keys without the role admin may only lower them", Request: reflect.TypeFor[limitsBody](), Example: `{"limits":{"connections":100,"send_bytes_per_second":1048576}}`, Response: reflect.TypeFor[limitsView](), Handle: e.changeLimits},
		{Method: "PUT", Path: "/v2/box/{id}/config/model", ID: "setModel", Summary: "Replace the model of a box, and if given its harness, the server and the key of the model", Request: reflect.TypeFor[modelBody](), Example: `{"model":"anthropic/claude-sonnet-4-5"}`, Response: reflect.TypeFor[modelView](), Handle: e.putModel},
		{Method: "PUT", Path: "/v2/box/{id}/config/custom-runner", ID: "setCustomRunner", Summary: "Replace the custom harness of a box", Request: reflect.TypeFor[runnerBody](), Example: `{"custom_runner":{"command":"node","args":["/workspace/home/harness.mjs"],"protocol":"box-sse-v1"}}`, Response: reflect.TypeFor[runnerView](), Handle: e.putRunner},
		{Method: "POST", Path: "/v2/box/{id}/config/skills", ID: "addSkill", Summary: "Add a skill to a box; it is installed before the next run of the agent", Request: reflect.TypeFor[skillBody](), Example: `{"skill_id":"owner/repository/skill"}`, Response: reflect.TypeFor[skillsView](), Handle: e.addSkill},
		{Method: "DELETE", Path: "/v2/box/{id}/config/skills/{owner}/{repository}", ID: "removeRepository", Summary: "Remove a skill that is a whole repository from a box; its files are removed before the next run of the agent", Response: reflect.TypeFor[skillsView](), Handle: e.removeSkill},
		{Method: "DELETE", Path: "/v2/box/{id}/config/skills/{owner}/{repository}/{skill}", ID: "removeSkill", Summary: "Remove a skill from a box", Response: reflect.TypeFor[skillsView](), Handle: e.removeSkill},
	}
}

// masked replaces every value.
const masked = "****"

// envView is the environment of new boxes with masked values.
type envView struct {
	EnvVars map[string]string `json:"env_vars" doc:"names of the variables; every value is shown as ****"`
}

// envBody is a new environment.
type envBody struct {
	EnvVars map[string]string `json:"env_vars" doc:"all variables; others are removed. Values are never returned"`
}

// variableBody is the value of one variable.
type variableBody struct {
	Value *string `json:"value" doc:"never returned"`
}

func viewEnv(vars map[string]name.Secret) envView {
	view := envView{EnvVars: map[string]string{}}
	for name := range vars {
		view.EnvVars[name] = masked
	}
	return view
}

func (e *Endpoints) getEnv(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	vars, err := e.Host.Environment(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: viewEnv(vars)}, nil
}

func (e *Endpoints) putEnv(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body envBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	if body.EnvVars == nil {
		p.Add("/env_vars", "is required; {} removes all variables")
	}
	vars := spec.Environment(&p, "/env_vars", body.EnvVars)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	was, err := e.Host.Environment(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	if err := e.Host.SetEnvironment(r.Context(), vars); err != nil {
		return rest.Reply{}, err
	}
	names := slices.Sorted(maps.Keys(vars))
	what := map[string]any{"environment": names, "names": change.Names(slices.Sorted(maps.Keys(was)), names)}
	return rest.Reply{Body: viewEnv(vars), Change: &rest.Change{What: what}}, nil
}

func (e *Endpoints) putVariable(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body variableBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	n := r.PathValue("key")
	spec.VariableName(&p, "", n)
	if body.Value == nil {
		p.Add("/value", "is required")
		return rest.Reply{}, p.Err()
	}
	spec.Variable(&p, "/value", n, *body.Value)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	if err := e.Host.SetVariable(r.Context(), n, name.NewSecret(*body.Value)); err != nil {
		return rest.Reply{}, err
	}
	return rest.DoneWith("", map[string]any{"variable_set": n}), nil
}

func (e *Endpoints) deleteVariable(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	name := r.PathValue("key")
	if err := e.Host.DeleteVariable(r.Context(), name); err != nil {
		return rest.Reply{}, err
	}
	return rest.DoneWith("", map[string]any{"variable_removed": name}), nil
}

type limitsBody struct {
	Limits spec.Limits `json:"limits" doc:"limits to change; null restores the configured limit. Other limits stay unchanged"`
}

type limitsView struct {
	Limits   map[string]int64 `json:"limits" doc:"all effective limits of the box; 0: no limit"`
	Operator map[string]int64 `json:"operator" doc:"limits set with an admin key, overriding the configured ones"`
	Own      map[string]int64 `json:"own" doc:"limits set with other keys, which count only where they are lower"`
	Model    modelLimitsView  `json:"model" doc:"limits of models (docs/budgets.md)"`
}

type modelLimitsView struct {
	Limits   []llm.Limit `json:"limits" doc:"all that apply to the box"`
	Operator *llm.Limit  `json:"operator,omitempty" doc:"set with an admin key, overriding the configured one"`
	Own      *llm.Limit  `json:"own,omitempty" doc:"set with another key, besides the first"`
}

func viewLimits(boxes Boxes, b api.BoxLimits) limitsView {
	host := boxes.HostLimits()
	v := limitsView{Limits: b.Effective(host).Map(), Operator: b.Operator.Map(), Own: b.Own.Map()}
	v.Model.Limits = append([]llm.Limit{}, b.Models(boxes.HostModelLimit())...)
	if b.OperatorModel.IsSet() {
		v.Model.Operator = &b.OperatorModel
	}
	if b.OwnModel.IsSet() {
		v.Model.Own = &b.OwnModel
	}
	return v
}

// getLimits handles GET /v2/box/{id}/config/limits.
func (e *Endpoints) getLimits(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: viewLimits(e.Boxes, box.Limits)}, nil
}

// changeLimits handles PATCH /v2/box/{id}/config/limits.
func (e *Endpoints) changeLimits(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body limitsBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	change, model := body.Limits.Change(&p, "/limits"), body.Limits.Model(&p, "/limits")
	if len(change) == 0 && model == nil && p.Err() == nil {
		p.Add("/limits", "is required; there are %s and model", policy.LimitNames())
	}
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	caller := api.CallerOf(r.Context())
	box, err = e.Rules.SetLimits(r.Context(), box.ID, func(now api.BoxLimits) (api.BoxLimits, error) {
		next, err := now.WithChange(caller, e.Boxes.HostLimits(), change)
		return next.WithModel(caller, model), err
	})
	if err != nil {
		return rest.Reply{}, err
	}
	names := []string{}
	for limit := range maps.Keys(change) {
		names = append(names, limit.String())
	}
	if model != nil {
		names = append(names, "model")
	}
	slices.Sort(names)
	view := viewLimits(e.Boxes, box.Limits)
	e.History.Log(box.ID, "info", "user", "limits changed: %v", names)
	return rest.Reply{
		Body: view, Change: &rest.Change{Box: box.ID, What: map[string]any{"limits": map[string]any{"operator": view.Operator, "own": view.Own, "model": view.Model}}},
	}, nil
}

type sourceBody struct {
	Addresses []string `json:"source_addresses" doc:"one IPv4 address, one IPv6 address, or both, from network.sources; empty: the host chooses"`
}

type sourceView struct {
	Message   string       `json:"message"`
	Addresses []netip.Addr `json:"source_addresses"`
}

// putSource handles PUT /v2/box/{id}/config/source-addresses.
func (e *Endpoints) putSource(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body sourceBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	source, err := spec.Source("/source_addresses", body.Addresses)
	if err != nil {
		return rest.Reply{}, err
	}
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	if box, err = e.Rules.SetSource(r.Context(), box.ID, source); err != nil {
		return rest.Reply{}, err
	}
	list := append([]netip.Addr{}, box.Source.Addrs()...)
	e.History.Log(box.ID, "info", "user", "source addresses set")
	return rest.Reply{
		Body: sourceView{"Source addresses updated", list}, Change: &rest.Change{Box: box.ID, What: map[string]any{"source_addresses": list}},
	}, nil
}
