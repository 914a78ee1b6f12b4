package access

import (
	"net/http"

	"boxgate/api"
	"boxgate/api/problem"
)

// Guard decides which requests are served. [New] makes one.
type Guard struct {
	find  Finder
	hosts map[string]bool // lower case, without port and trailing dot
}

// Finder returns who a key belongs to, if it is valid now.
type Finder func(key string) (api.Caller, bool)

// New makes a guard that admits requests with a key that find knows, under a loopback name, the address that the connection
// came in on, or one of names.
func New(find Finder, names []string) *Guard {
	return &Guard{find: find, hosts: allowedHosts(names)}
}

// Admit refuses a request that a web page of another site may have caused (Host and Origin) and one without a valid
// key, in this order, so that a page cannot even learn whether a key is right. What the key may do is for
// [Permit] to say.
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
