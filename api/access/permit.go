package access

import (
	"context"
	"net/http"
	"slices"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/policy"
	"boxgate/rule"
)

// finder finds a box by its ID or name.
type finder interface {
	Box(ctx context.Context, idOrName string) (api.Box, error)
}

// snapshots lists the snapshots of a box, which may have been deleted.
type snapshots interface {
	Snapshots(ctx context.Context, box policy.BoxID) ([]api.Snapshot, error)
}

// Permit decides whether the caller of a request may call the endpoint, and for which box. It alone makes that decision.
// The mux has already matched the request, so {id} is the value that the endpoint reads.
//
// For keys that do not see every box, it replaces {id} by the ID of the box it checked, so that a name that moves to
// another box in the meantime gives no access to that box.
func Permit(r *http.Request, route string, boxes finder, of snapshots) error {
	caller := api.CallerOf(r.Context())
	g, known := grants[route]
	if !known || !g.permits(caller.Role) {
		return problem.Refuse(http.StatusForbidden, "the API key %q has the role %s, which may not do this; see docs/keys.md for what may, and on the gateway's host `gateway api-key create` for another key", caller.Name, roleName(caller.Role))
	}
	id := r.PathValue("id")
	if id == "" || caller.Role == api.RoleAdmin || caller.Role == api.RoleReader {
		return nil
	}
	box, err := boxes.Box(r.Context(), id)
	if err != nil || !caller.Sees(box) {
		if g&outlives != 0 && seesSnapshotOf(r.Context(), policy.BoxID(id), caller, of) {
			return nil
		}
		return api.Errorf(api.ErrNotFound, "no box has the ID or name %q", problem.Clip(id))
	}
	r.SetPathValue("id", string(box.ID))
	return nil
}

// seesSnapshotOf reports whether a key sees a snapshot of a box that it cannot see, because the box was deleted.
func seesSnapshotOf(ctx context.Context, id policy.BoxID, caller api.Caller, of snapshots) bool {
	list, err := of.Snapshots(ctx, id)
	return err == nil && slices.ContainsFunc(list, caller.SeesSnapshot)
}

func roleName(r api.Role) string {
	if r == "" {
		return "none"
	}
	return string(r)
}

// Secrets returns a function that reports which of the operator's secrets the rules of a request may refer to: for admin
// keys, all of them. With other keys, a caller could have a secret sent to its own server and read it.
func Secrets(ctx context.Context, has func(name string) bool) func(name string) bool {
	if api.CallerOf(ctx).Role == api.RoleAdmin {
		return has
	}
	return func(string) bool { return false }
}

// Rules refuses header rules that require an admin key: rules that send requests, with identifying headers of the box, to
// another server, and rules that use the operator's secrets, even if an admin added those earlier.
func Rules(ctx context.Context, rules []policy.HeaderRule) error {
	caller := api.CallerOf(ctx)
	if caller.Role == api.RoleAdmin {
		return nil
	}
	for _, r := range rules {
		for _, e := range r.Effects {
			if _, only := e.(rule.AdminOnly); only {
				return problem.Refuse(http.StatusForbidden, "%s of %q needs an API key with the role %s", e.Key(), r.Pattern, api.RoleAdmin)
			}
		}
		if names := r.Secrets(); len(names) > 0 {
			return problem.Refuse(http.StatusForbidden, "the secret %q in the rule of %q needs an API key with the role %s", problem.Clip(names[0]), r.Pattern, api.RoleAdmin)
		}
	}
	return nil
}
