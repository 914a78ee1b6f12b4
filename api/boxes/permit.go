package boxes

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/change"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// permit sets the creator of a requested box, and refuses requests beyond the permissions of its key: source addresses, a
// snapshot of a box that the key does not see, and certain header rules.
func (e *Endpoints) permit(ctx context.Context, req *api.CreateRequest) error {
	caller := api.CallerOf(ctx)
	if caller.Key != api.OperatorKey {
		req.CreatedBy = caller.Key
	}
	if caller.Role != api.RoleAdmin && req.Source != (policy.Source{}) {
		return problem.Refuse(http.StatusForbidden, "source_addresses needs an API key with the role %s", api.RoleAdmin)
	}
	var err error
	if req.Limits, err = req.Limits.WithChange(caller, e.Boxes.HostLimits(), req.LimitChange); err != nil {
		return err
	}
	if err := access.Rules(ctx, req.Headers); err != nil || caller.Role == api.RoleAdmin || req.Snapshot == "" {
		return err
	}
	list, err := e.Snapshots.Snapshots(ctx, "")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(s api.Snapshot) bool { return s.ID == req.Snapshot })
	if i >= 0 && caller.SeesSnapshot(list[i]) {
		return nil
	}
	return api.Errorf(api.ErrNotFound, "this API key sees no snapshot %q", problem.Clip(req.Snapshot))
}

// describeCreate describes a new box for the audit trail: its source, policy and header rules.
func describeCreate(b api.Box, req api.CreateRequest) *rest.Change {
	what := map[string]any{"name": b.Name}
	if req.Snapshot != "" {
		what["snapshot"] = req.Snapshot
	}
	if b.Policy.Named != "" {
		what["named_policy"] = b.Policy.Named
	}
	if b.Attached != nil {
		what["attached"] = b.Attached.Kind
	}
	if b.Limits != (api.BoxLimits{}) {
		what["limits"] = b.Limits
	}
	if len(req.Env) > 0 {
		what["environment"] = slices.Sorted(maps.Keys(req.Env))
	}
	all := map[string]any{"box": what, "policy": change.Policy(api.PolicyState{}, b.Policy, change.Whole)}
	if len(req.Headers) > 0 {
		all["headers"] = change.Headers(nil, req.Headers, 1)
	}
	return &rest.Change{Box: b.ID, PolicyVersion: b.Policy.Version, What: all}
}
