package change

import (
	"context"
	"time"

	"boxgate/api"
	"boxgate/store/history"
)

// OriginOf returns the origin of a change for the history: the caller of the API whose request ctx belongs to, if there
// is one.
func OriginOf(ctx context.Context, cause history.Cause) history.Origin {
	caller, call := api.CallerOf(ctx), api.CallOf(ctx)
	return history.Origin{At: time.Now(), Cause: cause, KeyID: caller.Key, Key: caller.Name, Role: string(caller.Role), Remote: call.Remote, Call: call.Route}
}
