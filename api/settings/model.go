package settings

import (
	"context"
	"errors"
	"net/http"

	"boxgate/agents"
	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/change"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/policy"
)

// modelBody is a new model of a box. Absent fields stay.
type modelBody struct {
	Model   string  `json:"model" doc:"with a built-in harness: provider/model"`
	Agent   string  `json:"agent,omitempty" doc:"claude-code, codex or opencode"`
	APIKey  string  `json:"agent_api_key,omitempty" doc:"of a built-in harness: becomes the header rule for the host of the model; never returned"`
	BaseURL *string `json:"agent_base_url,omitempty" doc:"server of the model; empty: the provider's own"`
}

type modelView struct {
	Message  string         `json:"message"`
	Model    string         `json:"model"`
	Warnings []problem.View `json:"warnings,omitempty"`
}

// check reports mistakes that can be found without the box.
func (b *modelBody) check() error {
	var p problem.List
	spec.Model(&p, "/model", b.Model)
	if b.Model == "" {
		p.Add("/model", "is required")
	}
	if b.Agent != "" && !agents.IsBuiltIn(b.Agent) {
		p.Add("/agent", "must be claude-code, codex or opencode")
	}
	if b.BaseURL != nil && *b.BaseURL != "" {
		agents.CheckURL(&p, "/agent_base_url", *b.BaseURL)
	}
	return p.Err()
}

// apply changes the agent of a box. The conversation with another harness ends.
func (b *modelBody) apply(h *api.Hosted) {
	h.Model = b.Model
	if h.Agent == "" && h.CustomRunner == nil {
		h.Agent = agents.HarnessOf(b.Model)
	}
	if b.Agent != "" && b.Agent != h.Agent {
		h.Agent, h.CustomRunner, h.Session = b.Agent, nil, ""
	}
	if b.BaseURL != nil {
		h.BaseURL, h.BaseURLOfEnv = *b.BaseURL, false
	}
}

// putModel handles PUT config/model. The key is set before the model that needs it.
func (e *Endpoints) putModel(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body modelBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	if err := body.check(); err != nil {
		return rest.Reply{}, err
	}
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	next := box.Hosted
	body.apply(&next)
	what := map[string]any{"model": body.Model}
	view := modelView{Message: "Model updated", Model: body.Model}
	if body.APIKey != "" && !agents.IsHostedKey(body.APIKey) {
		state, err := e.setKey(r.Context(), box.ID, next, body.APIKey)
		if err != nil {
			return rest.Reply{}, err
		}
		view.Warnings = problem.Views(state.Warnings)
		what["headers"] = change.Headers(state.Was, state.Rules, state.Version)
	}
	if box, err = e.configure(r, func(c *api.Configuration) error { body.apply(&c.Hosted); return nil }); err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "model %s configured", body.Model)
	return rest.Reply{Body: view, Change: &rest.Change{Box: box.ID, What: what}}, nil
}

// setKey replaces the header rule of a box for the host of its model. Without If-Match it retries for as long as other clients
// change the rules in between.
func (e *Endpoints) setKey(ctx context.Context, id policy.BoxID, h api.Hosted, key string) (api.HeaderState, error) {
	var p problem.List
	if !agents.IsBuiltIn(h.Agent) {
		p.Add(agents.KeyPointer, "is for a box with a built-in harness; give agent too")
		return api.HeaderState{}, p.Err()
	}
	keys := agents.NewKeys(&p, e.Meters)
	keys.SetModel(agents.KeyPointer, h, key)
	added := keys.Rules(nil)
	if err := p.Err(); err != nil {
		return api.HeaderState{}, err
	}
	if err := access.Rules(ctx, added); err != nil {
		return api.HeaderState{}, err
	}
	for {
		now, err := e.Headers.Headers(ctx, id)
		if err != nil {
			return api.HeaderState{}, err
		}
		rules := policy.MergeHeaders(now.Rules, added)
		if n := policy.CountHosts(rules); n > policy.MaxHeaderHosts {
			return api.HeaderState{}, problem.Invalid(agents.KeyPointer, "there would be header rules for %d hosts; the limit is %d", n, policy.MaxHeaderHosts)
		}
		state, err := e.Headers.SetHeaders(ctx, id, rules, &now.Version)
		if !errors.Is(err, api.ErrPrecondition) || ctx.Err() != nil {
			return state, err
		}
	}
}
