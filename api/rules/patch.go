package rules

import (
	"context"
	"errors"
	"net/http"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
	"boxgate/policy/name"
)

func (e *Endpoints) patchHeaders(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.patch(w, r, headerStore{
		box: box.ID,
		get: func(ctx context.Context) (api.HeaderState, error) { return e.Host.Headers(ctx, box.ID) },
		set: func(ctx context.Context, rules []policy.HeaderRule, match *uint64) (api.HeaderState, error) {
			state, err := e.Host.SetHeaders(ctx, box.ID, rules, match)
			if err == nil {
				e.History.Log(box.ID, "info", "user", "attach headers changed, %d hosts", policy.CountHosts(rules))
			}
			return state, err
		},
	})
}

func (e *Endpoints) patchGlobalHeaders(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.patch(w, r, headerStore{get: e.Host.GlobalHeaders, set: e.Host.SetGlobalHeaders})
}

// headerStore reads and replaces one set of header rules.
type headerStore struct {
	box policy.BoxID // "": the global rules
	get func(context.Context) (api.HeaderState, error)
	set func(context.Context, []policy.HeaderRule, *uint64) (api.HeaderState, error)
}

// patch changes the rules of some hosts and keeps the others, whose values the caller does not have. Without If-Match
// it retries for as long as other clients change the rules in between. It ends, because each retry means that one of
// them has succeeded.
func (e *Endpoints) patch(w http.ResponseWriter, r *http.Request, s headerStore) (rest.Reply, error) {
	var removed []name.Pattern
	changed, match, err := e.readHeaders(w, r, &removed)
	if err != nil {
		return rest.Reply{}, err
	}
	for {
		now, err := s.get(r.Context())
		if err != nil {
			return rest.Reply{}, err
		}
		if match != nil && *match != now.Version {
			return rest.Reply{}, api.ErrPrecondition
		}
		rules, unknown := policy.WithoutHosts(now.Rules, removed)
		if len(unknown) > 0 {
			return rest.Reply{}, api.Errorf(api.ErrNotFound, "there is no header rule for %q", unknown[0])
		}
		rules = policy.MergeHeaders(rules, changed)
		if n := policy.CountHosts(rules); n > policy.MaxHeaderHosts {
			return rest.Reply{}, problem.Invalid("", "there would be rules for %d hosts; the limit is %d", n, policy.MaxHeaderHosts)
		}
		if n := policy.CountPlaceholders(rules); n > policy.MaxPlaceholders {
			return rest.Reply{}, problem.Invalid("", "there would be %d placeholders; the limit is %d", n, policy.MaxPlaceholders)
		}
		state, err := s.set(r.Context(), rules, &now.Version)
		if errors.Is(err, api.ErrPrecondition) && match == nil && r.Context().Err() == nil {
			continue
		}
		if err != nil {
			return rest.Reply{}, err
		}
		return changedHeaders(s.box, state), nil
	}
}
