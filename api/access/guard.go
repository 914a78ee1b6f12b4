package access

import (
	"net/http"

	"boxgate/api"
	"boxgate/api/problem"
)

// Guard authenticates requests. Use [New].
type Guard struct {
	find  Finder
	peer  PeerFinder      // nil: every request needs a key
	hosts map[string]bool // lower case, without port and trailing dot
}

// PeerFinder returns the user of a request. It returns false unless the request came over the gateway's Unix socket.
type PeerFinder func(r *http.Request) (api.Peer, bool)

// Finder returns the caller that a valid key belongs to.
type Finder func(key string) (api.Caller, bool)

// New makes a guard that admits requests with a key known to find, or without a key from users who need none, if their Host is a
// loopback name, the address of the connection, or one of names. A nil peer means that every request needs a key.
func New(find Finder, peer PeerFinder, names []string) *Guard {
	return &Guard{find: find, peer: peer, hosts: allowedHosts(names)}
}

// callerOf returns the caller of a request: the one that its key belongs to, or without any key a user who needs none. Such
// users have the rights of the operator's key.
func (g *Guard) callerOf(r *http.Request) (api.Caller, bool) {
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
// permissions of the key.
func (g *Guard) Admit(w http.ResponseWriter, r *http.Request) (api.Caller, error) {
	if !g.knownHost(r) {
		return api.Caller{}, problem.Refuse(http.StatusMisdirectedRequest, "Host %q is not a name of this API; use its address or localhost", problem.Clip(r.Host))
	}
	if !sameOrigin(r) {
		return api.Caller{}, problem.Refuse(http.StatusForbidden, "requests from web pages of another origin are refused")
	}
	caller, ok := g.callerOf(r)
	if !ok {
		w.Header().Set("WWW-Authenticate", `Bearer realm="boxgate"`)
		return api.Caller{}, problem.Refuse(http.StatusUnauthorized, "a valid API key is required, in X-Box-Api-Key or as Authorization: Bearer")
	}
	return caller, nil
}
