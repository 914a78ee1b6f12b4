package e2b

import (
	"net/http"

	"boxgate/api"
)

// Texts of refusals: what to do instead.
const (
	noBuilds  = "templates are not built by this gateway: they are the images of its configuration (launcher.images), and snapshots; start a sandbox, prepare it, and take a snapshot"
	noVolumes = "this gateway has no volumes; take a snapshot of a sandbox with the files, and create sandboxes from it"
	noTeams   = "this gateway has no teams; API keys have roles and quotas (docs/keys.md)"
)

// refusals are the endpoints of E2B that boxgate does not have.
var refusals = map[string]string{
	"POST /v2/templates":                              noBuilds,
	"POST /v3/templates":                              noBuilds,
	"POST /templates":                                 noBuilds,
	"POST /templates/{template}":                      noBuilds,
	"POST /v2/templates/{template}/builds/{build}":    noBuilds,
	"GET /templates/{template}/builds/{build}/status": noBuilds,
	"GET /templates/{template}/builds/{build}/logs":   noBuilds,
	"GET /templates/{template}/files/{hash}":          noBuilds,
	"POST /templates/tags":                            noBuilds,
	"DELETE /templates/tags":                          noBuilds,
	"PATCH /templates/{template}":                     "templates are seen by the keys that see their snapshot, and images by all keys; this cannot be changed",
	"PATCH /v2/templates/{template}":                  "templates are seen by the keys that see their snapshot, and images by all keys; this cannot be changed",
	"/volumes":                                        noVolumes,
	"/volumes/{volume}":                               noVolumes,
	"/volumecontent/{rest...}":                        noVolumes,
	"/teams":                                          noTeams,
	"/teams/{rest...}":                                noTeams,
}

func (e *Endpoints) refusedRoutes() (list []route) {
	for pattern, why := range refusals {
		list = append(list, route{pattern, func(http.ResponseWriter, *http.Request) (int, any, error) {
			return 0, nil, api.Errorf(api.ErrNotSupported, "%s", why)
		}})
	}
	return list
}
