package access

import (
	"context"
	"net/http"

	"boxgate/api"
	"boxgate/api/problem"
)

// PeerHeader is the request header with the ID of the host of the fleet that a request came through. A request with it is served here or
// refused, whoever sent it: it is not sent to another host, so that hosts which disagree about an owner cannot send it in circles.
const PeerHeader = "Boxgate-Fleet-Host"

// peerKey is the context key of the source of a request from another host. Only [WithPeer] sets it.
type peerKey struct{}

// WithPeer returns a context for requests that came through another host of the fleet. source is the host and the address of the client
// there, for the audit trail. Such a request has no other rights than its own key.
func WithPeer(ctx context.Context, source string) context.Context {
	return context.WithValue(ctx, peerKey{}, source)
}

// Peer returns the source of a request that came through another host of the fleet; false for other requests.
func Peer(ctx context.Context) (source string, ok bool) {
	source, ok = ctx.Value(peerKey{}).(string)
	return source, ok
}

// shownKeyContext is the context key of the key of a request.
type shownKeyContext struct{}

// WithShownKey returns a request whose context keeps the key that it presented, or that its session at the dashboard began with, for calls to
// other hosts of the fleet that are part of it.
func WithShownKey(r *http.Request) *http.Request {
	kept := http.Header{}
	if s, ok := signedIn(r.Context()); ok {
		if s.Key.Reveal() == "" {
			return r
		}
		kept.Set(api.KeyHeader, s.Key.Reveal())
		return r.WithContext(context.WithValue(r.Context(), shownKeyContext{}, kept))
	}
	for _, name := range []string{api.KeyHeader, "Authorization"} {
		if values := r.Header.Values(name); len(values) > 0 {
			kept[name] = values
		}
	}
	if len(kept) == 0 {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), shownKeyContext{}, kept))
}

// ShownKey returns the headers with the key of a request. ok is false for requests without one: from sessions at the dashboard that did not
// begin with a key of the fleet, and from users of the Unix socket. Other hosts know neither.
func ShownKey(ctx context.Context) (_ http.Header, ok bool) {
	kept, ok := ctx.Value(shownKeyContext{}).(http.Header)
	return kept, ok
}

// MayElsewhere checks the part of [Permit] that needs no box, before a request is sent to the host that has the box. That host checks
// everything again.
func MayElsewhere(ctx context.Context, route, box string) error {
	caller := api.CallerOf(ctx)
	if err := permitRole(caller, route); err != nil {
		return err
	}
	if caller.Role == api.RoleBox && LooksLikeID(box) && string(caller.Box) != box {
		return api.Errorf(api.ErrNotFound, "no box has the ID or name %q", problem.Clip(box))
	}
	return nil
}

// LooksLikeID reports whether a text has the form of a box ID: 16 hexadecimal digits, beginning with the six of its host's ID.
func LooksLikeID(text string) bool {
	if len(text) != 16 {
		return false
	}
	for _, c := range []byte(text) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
