package access

import (
	"net/http"

	"boxgate/api"
	"boxgate/api/problem"
)

// Guard authenticates requests. Use [New].
type Guard struct {
	find  Finder
	hosts map[string]bool // lower case, without port and trailing dot
}

// Finder returns the caller that a valid key belongs to.
type Finder func(key string) (api.Caller, bool)

// New makes a guard that admits requests with a key known to find, if their Host is a loopback name, the address of the
// connection, or one of names.
func New(find Finder, names []string) *Guard {
	return &Guard{find: find, hosts: allowedHosts(names)}
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
	key, ok := keyOf(r)
	caller, known := g.find(key)
	if !ok || !known {
		w.Header().Set("WWW-Authenticate", `Bearer realm="boxgate"`)
		return api.Caller{}, problem.Refuse(http.StatusUnauthorized, "a valid API key is required, in X-Box-Api-Key or as Authorization: Bearer")
	}
	return caller, nil
}
