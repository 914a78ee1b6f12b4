// Package access authenticates and authorizes the callers of the API. It admits requests with a valid key, for as long as
// the key is valid, and never requests from a web page of another site.
package access

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
)

// Guard authenticates requests. Use [New].
type Guard struct {
	find  Finder
	peer  PeerFinder // nil: every request needs a key
	hosts Hosts
}

// PeerFinder returns the user of a request. It returns false unless the request came over the gateway's Unix socket.
type PeerFinder func(r *http.Request) (api.Peer, bool)

// Finder returns the caller that a valid key belongs to. A key that is not valid because the host is fenced has a caller with Fleet.
type Finder func(key string) (api.Caller, bool)

// New makes a guard that admits requests with a key known to find, or without a key from users who need none, if their Host is a
// loopback name, the address of the connection, or one of names. A nil peer means that every request needs a key.
func New(find Finder, peer PeerFinder, names []string) *Guard {
	return &Guard{find: find, peer: peer, hosts: NewHosts(names)}
}

// callerOf returns the caller of a request: the one that the dashboard has signed in, the one that its key belongs to, or without
// any key a user who needs none. Such users have the rights of the operator's key.
func (g *Guard) callerOf(r *http.Request) (api.Caller, bool) {
	if s, ok := signedIn(r.Context()); ok {
		return s.Caller, s.Valid()
	}
	if r.Header[api.KeyHeader] == nil && r.Header["Authorization"] == nil {
		if g.peer == nil {
			return g.find("")
		}
		peer, ok := g.peer(r)
		return api.Caller{Key: api.OperatorKey, Name: api.OperatorKey, Role: api.RoleAdmin}, ok && peer.Admin
	}
	key, ok := keyOf(r)
	caller, known := g.find(key)
	return caller, ok && known
}

// Admit refuses a request that may come from a web page of another site (checking Host and Origin), and then one without
// a valid key. The order matters: otherwise a page could find out whether a key is valid. [Permit] decides about the
// permissions of the key. The dashboard checks Host and Origin itself.
func (g *Guard) Admit(w http.ResponseWriter, r *http.Request) (api.Caller, error) {
	if _, ok := signedIn(r.Context()); ok {
		caller, valid := g.callerOf(r)
		if !valid {
			return api.Caller{}, problem.Refuse(http.StatusUnauthorized, "the session at the dashboard has ended; sign in again")
		}
		return caller, nil
	}
	if err := g.CheckOrigin(r); err != nil {
		return api.Caller{}, err
	}
	caller, ok := g.callerOf(r)
	if !ok {
		if caller.Fleet {
			return api.Caller{}, problem.Refuse(http.StatusServiceUnavailable, "this host is cut off from its fleet, so it accepts no keys of the fleet; use another host, or a key of this host")
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="boxgate"`)
		return api.Caller{}, problem.Refuse(http.StatusUnauthorized, "a valid API key is required, in X-Box-Api-Key or as Authorization: Bearer")
	}
	return caller, nil
}

// CheckOrigin refuses a request that may come from a web page of another site. [Guard.Admit] does so before it looks at the key; it is
// for requests that carry another credential.
func (g *Guard) CheckOrigin(r *http.Request) error {
	if !g.hosts.Known(r) {
		return problem.Refuse(http.StatusMisdirectedRequest, "Host %q is not a name of this API; use its address or localhost", problem.Clip(r.Host))
	}
	if !sameOrigin(r) {
		return problem.Refuse(http.StatusForbidden, "requests from web pages of another origin are refused")
	}
	return nil
}

// keyOf returns the key of a request. A request with two different keys counts as one without a key.
func keyOf(r *http.Request) (string, bool) {
	keys := slices.Clone(r.Header.Values(api.KeyHeader))
	for _, v := range r.Header.Values("Authorization") {
		scheme, token, _ := strings.Cut(v, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", false
		}
		keys = append(keys, strings.TrimSpace(token))
	}
	keys = slices.Compact(keys)
	if len(keys) != 1 || keys[0] == "" || len(keys[0]) > 512 {
		return "", false
	}
	return keys[0], true
}

// WhileKeyWorks returns the request with a context that ends when its key is no longer valid or belongs to another
// caller, so that streams do not outlive a revoked key. Work that outlives the request ends then too ([Outlive]). The caller must call end
// after the request.
func (g *Guard) WhileKeyWorks(r *http.Request) (_ *http.Request, end func()) {
	ctx := r.Context()
	caller, shown := api.CallerOf(ctx), (&http.Request{Header: keyFields(r.Header)}).WithContext(context.WithoutCancel(ctx))
	ctx, end = While(WithCredential(ctx, func() bool {
		now, ok := g.callerOf(shown)
		return ok && now == caller
	}))
	return r.WithContext(ctx), end
}

// keyFields returns the fields of a request that [Guard.callerOf] reads, for work that outlives it.
func keyFields(all http.Header) http.Header {
	fields := http.Header{}
	for _, name := range []string{http.CanonicalHeaderKey(api.KeyHeader), "Authorization"} {
		if values, ok := all[name]; ok {
			fields[name] = values
		}
	}
	return fields
}

// sameOrigin reports whether a request comes from this origin or from no web page at all (Fetch standard, Sec-Fetch-Site
// and Origin).
func sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return false
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return true
	}
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	return len(origins) == 1 && strings.EqualFold(origins[0], scheme+r.Host)
}
