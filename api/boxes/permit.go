package boxes

import (
	"context"
	"net/http"
	"slices"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// permit completes a request for a box with who makes it, and refuses what that key may not ask for: source addresses, a snapshot of
// a box that it does not see, and some header rules.
func (e *Endpoints) permit(ctx context.Context, req *api.CreateRequest) error {
	caller := api.CallerOf(ctx)
	if caller.Key != api.OperatorKey {
		req.CreatedBy = caller.Key
	}
	if caller.Role != api.RoleAdmin && req.Source != (policy.Source{}) {
		return problem.Refuse(http.StatusForbidden, "source_addresses needs an API key with the role %s", api.RoleAdmin)
	}
	if err := access.Rules(ctx, req.Headers); err != nil || caller.Role == api.RoleAdmin || req.Snapshot == "" {
		return err
	}
	list, err := e.Host.Snapshots(ctx, "")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(s api.Snapshot) bool { return s.ID == req.Snapshot })
	if i >= 0 {
		box, err := e.Host.Box(ctx, string(list[i].Box))
		if err == nil && box.ID == list[i].Box && caller.Sees(box) {
			return nil
		}
	}
	return api.Errorf(api.ErrNotFound, "this API key sees no box with a snapshot %q", problem.Clip(req.Snapshot))
}

// made is what the audit trail says of a new box.
func made(b api.Box, rules []policy.HeaderRule) *rest.Change {
	what := map[string]any{"name": b.Name, "policy": b.Policy.Spec.Mode, "header_hosts": policy.CountHosts(rules)}
	if p := b.Policy.Spec.UpstreamProxy; p != nil {
		what["upstream_proxy"] = p.URL
	}
	if b.Policy.Named != "" {
		what["named_policy"] = b.Policy.Named
	}
	if b.Attached != nil {
		what["attached"] = b.Attached.Kind
	}
	return &rest.Change{Box: b.ID, What: map[string]any{"box": what}}
}
