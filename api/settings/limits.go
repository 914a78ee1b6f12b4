package settings

import (
	"maps"
	"net/http"
	"slices"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/policy"
)

type limitsBody struct {
	Limits spec.Limits `json:"limits" doc:"limits to change; null restores the configured limit. Other limits stay unchanged"`
}

type limitsView struct {
	Limits   map[string]int64 `json:"limits" doc:"all effective limits of the box; 0: no limit"`
	Operator map[string]int64 `json:"operator" doc:"limits set with an admin key, overriding the configured ones"`
	Own      map[string]int64 `json:"own" doc:"limits set with other keys, which count only where they are lower"`
}

func viewLimits(host policy.Limits, b api.BoxLimits) limitsView {
	return limitsView{Limits: b.Effective(host).Map(), Operator: b.Operator.Map(), Own: b.Own.Map()}
}

// getLimits handles GET /v2/box/{id}/config/limits.
func (e *Endpoints) getLimits(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: viewLimits(e.Boxes.HostLimits(), box.Limits)}, nil
}

// changeLimits handles PATCH /v2/box/{id}/config/limits.
func (e *Endpoints) changeLimits(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body limitsBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	change := body.Limits.Change(&p, "/limits")
	if len(change) == 0 && p.Err() == nil {
		p.Add("/limits", "is required; there are %s", policy.LimitNames())
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
		return now.WithChange(caller, e.Boxes.HostLimits(), change)
	})
	if err != nil {
		return rest.Reply{}, err
	}
	names := []string{}
	for limit := range maps.Keys(change) {
		names = append(names, limit.String())
	}
	slices.Sort(names)
	view := viewLimits(e.Boxes.HostLimits(), box.Limits)
	e.History.Log(box.ID, "info", "user", "limits changed: %v", names)
	return rest.Reply{
		Body: view, Change: &rest.Change{Box: box.ID, What: map[string]any{"limits": map[string]any{"operator": view.Operator, "own": view.Own}}},
	}, nil
}
