package access

import (
	"context"

	"boxgate/api"
	"boxgate/policy/name"
)

// Session is a caller whom the dashboard has signed in. Its requests are made inside this process, so they carry no key.
type Session struct {
	Caller api.Caller
	Remote string // address of the browser, for the audit trail
	// Valid reports whether the session has not ended. A request that takes long is cut soon after it has.
	Valid func() bool
	// Key is the API key of the fleet that the person has signed in with, for boxes of other hosts; empty for other sessions. Requests inside
	// this process do not need it.
	Key name.Secret
}

// sessionKey is the context key of the session. It is unexported and set by [WithCaller] only, so no field of a request from the
// network can be one.
type sessionKey struct{}

// WithCaller returns a context for in-process requests to the API on behalf of a session. The [Guard] requires no key for them and
// skips its checks of Host and Origin, so the caller must have checked both on the browser's request.
func WithCaller(ctx context.Context, s Session) context.Context {
	return context.WithValue(ctx, sessionKey{}, s)
}

// signedIn returns the session of a request inside this process.
func signedIn(ctx context.Context) (Session, bool) {
	s, ok := ctx.Value(sessionKey{}).(Session)
	return s, ok && s.Valid != nil
}

// Dashboard returns the address of the browser whose request to the dashboard has led to this one. It returns false for requests
// that the dashboard has not made.
func Dashboard(ctx context.Context) (remote string, ok bool) {
	s, ok := signedIn(ctx)
	return s.Remote, ok
}
