package server

import (
	"context"

	"boxgate/api"
	"boxgate/policy"
)

// keyValid reports whether an API key may still use a box.
func (a *API) keyValid(ctx context.Context, key api.Caller, box policy.BoxID) bool {
	return (a.StillValid == nil || a.StillValid(key)) && a.MayUse(ctx, key, box)
}
