package server

import (
	"net/http"
	"path"
	"strings"

	"boxgate/api/problem"
)

// noRoute answers requests for a path or method that is not in the table, in JSON and with Allow where the path exists.
func noRoute(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) error {
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

// cleanPath is the form that the mux would redirect to. A redirect would lose the body, so other forms are refused.
func cleanPath(p string) string {
	clean := path.Clean("/" + p)
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}
