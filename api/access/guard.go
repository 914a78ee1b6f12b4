package access

import (
	"net/http"

	"boxgate/api/problem"
)

// Guard decides which requests are served. [New] makes one.
type Guard struct {
	checkKey func(key string) bool
	hosts    map[string]bool // lower case, without port and trailing dot
}

// New makes a guard that admits requests with a key that checkKey accepts, under a loopback name, the address that
// the connection came in on, or one of names.
func New(checkKey func(key string) bool, names []string) *Guard {
	return &Guard{checkKey: checkKey, hosts: allowedHosts(names)}
}

// Admit refuses a request that a web page of another site may have caused (Host and Origin) and one without a valid
// key, in this order, so that a page cannot even learn whether a key is right.
func (g *Guard) Admit(w http.ResponseWriter, r *http.Request) error {
	if !g.knownHost(r) {
		return problem.Refuse(http.StatusMisdirectedRequest, "Host %q is not a name of this API; use its address or localhost", problem.Clip(r.Host))
	}
	if !sameOrigin(r) {
		return problem.Refuse(http.StatusForbidden, "requests from web pages of another origin are refused")
	}
	if key, ok := keyOf(r); !ok || !g.checkKey(key) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="boxgate"`)
		return problem.Refuse(http.StatusUnauthorized, "a valid API key is required, in X-Box-Api-Key or as Authorization: Bearer")
	}
	return nil
}
