package server

import (
	"net/http"
	"path"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
)

// noRoute answers requests for an unknown path or method, in JSON, and with Allow if the path exists.
func noRoute(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) error {
	if why := hostedOnly(r.URL.Path); why != "" {
		return api.Errorf(api.ErrNotSupported, "%s", why)
	}
	var allowed []string
	if r.URL.Path == cleanPath(r.URL.Path) {
		for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			probe := &http.Request{Method: m, URL: r.URL, Host: r.Host}
			if _, pattern := mux.Handler(probe); pattern != "" {
				allowed = append(allowed, m)
			}
		}
	}
	if len(allowed) == 0 {
		return problem.Refuse(http.StatusNotFound, "no such path: %s; see /openapi.json", problem.Clip(r.URL.Path))
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return problem.Refuse(http.StatusMethodNotAllowed, "%s is not allowed here; use %s", problem.Clip(r.Method), strings.Join(allowed, " or "))
}

// hostedBoxPaths maps paths below a box that only the hosted product serves to an alternative.
var hostedBoxPaths = map[string]string{
	"browser": "this gateway has no browser API; start a browser in the box with exec, and reach its port by a public URL",
	"steps":   "this gateway runs no built-in agents, so there are no steps; see runs for the commands of a box",
}

// hostedAccountPaths maps words that replace the ID of a box in paths of the hosted product to an alternative. Package boxes
// rejects them as names of boxes.
var hostedAccountPaths = map[string]string{
	"agent-credentials": "this gateway runs no built-in agents and keeps no credentials for them; have a header rule set the key in transit (config/attach-headers)",
	"github":            "this gateway is no GitHub App; give a token as github_token when you create a box or clone, and it becomes a header rule",
}

// hostedOnly returns the alternative to a path that only the hosted product serves, or "" for other paths.
func hostedOnly(path string) string {
	below, ok := strings.CutPrefix(path, "/v2/box/")
	if !ok {
		return ""
	}
	id, rest, _ := strings.Cut(below, "/")
	if why := hostedAccountPaths[id]; why != "" {
		return why
	}
	first, _, _ := strings.Cut(rest, "/")
	return hostedBoxPaths[first]
}

// cleanPath returns the path that the mux would redirect to. A redirect would lose the body, so other paths are refused.
func cleanPath(p string) string {
	clean := path.Clean("/" + p)
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}
