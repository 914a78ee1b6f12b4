package rest

import (
	"net/http"
	"net/url"
	"slices"

	"boxgate/api/problem"
)

// onlyQuery refuses query parameters that a route does not know, repeated ones, and queries that cannot be parsed:
// nothing is silently ignored.
func onlyQuery(r *http.Request, known []string) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return problem.Refuse(http.StatusUnprocessableEntity, "the query cannot be parsed; write it as name=value, joined by &")
	}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return problem.Refuse(http.StatusUnprocessableEntity, "unknown query parameter %q", problem.Clip(name))
		}
		if len(values) > 1 {
			return problem.Refuse(http.StatusUnprocessableEntity, "query parameter %q is given twice", problem.Clip(name))
		}
	}
	return nil
}
