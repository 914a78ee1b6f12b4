package settings

import (
	"maps"
	"net/http"
	"slices"

	"boxgate/api/change"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/policy/name"
)

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
