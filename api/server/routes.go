package server

import (
	"net/http"

	"boxgate/api/boxes"
	"boxgate/api/egress"
	"boxgate/api/exec"
	"boxgate/api/gateway"
	"boxgate/api/history"
	"boxgate/api/openapi"
	"boxgate/api/rest"
	"boxgate/api/rules"
	"boxgate/api/strict"
	"boxgate/api/urls"
)

// room is a package of endpoints.
type room interface{ Routes() []rest.Route }

// rooms are all endpoints but the description of them.
func (a *API) rooms() []room {
	bodies, past := strict.Bodies{Most: a.MaxBody}, history.New()
	return []room{
		&boxes.Endpoints{Host: a.Host, History: past, Bodies: bodies, HasSecret: a.HasSecret},
		&exec.Endpoints{Host: a.Host, History: past, Bodies: bodies, MaxOutput: a.MaxOutput},
		&rules.Endpoints{Host: a.Host, History: past, Bodies: bodies, HasSecret: a.HasSecret},
		&egress.Endpoints{Host: a.Host, Bodies: bodies, Stopping: a.stopping},
		&urls.Endpoints{Host: a.Host, History: past, Bodies: bodies},
		&gateway.Endpoints{Host: a.Host, Bodies: bodies},
	}
}

// addRoutes puts the endpoints of every room on the mux, and the description of them all.
func (a *API) addRoutes() error {
	var doc []byte
	a.routes = []rest.Route{{
		Method: "GET", Path: "/openapi.json", Summary: "This description", Produces: []string{"application/json"},
		Handle: func(w http.ResponseWriter, _ *http.Request) (rest.Reply, error) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			_, _ = w.Write(doc)
			return rest.Reply{Written: true}, nil
		},
	}}
	for _, r := range a.rooms() {
		a.routes = append(a.routes, r.Routes()...)
	}
	for _, rt := range a.routes {
		a.mux.Handle(rt.Pattern(), a.answers.Serve(rt))
		a.public[rt.Pattern()] = rt.Public
	}
	var err error
	doc, err = openapi.Describe(a.routes)
	return err
}
