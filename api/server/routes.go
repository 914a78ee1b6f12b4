package server

import (
	"net/http"
	"sync"

	"boxgate/api/boxes"
	"boxgate/api/capture"
	"boxgate/api/egress"
	"boxgate/api/exec"
	"boxgate/api/files"
	"boxgate/api/gateway"
	"boxgate/api/git"
	"boxgate/api/harness"
	"boxgate/api/keys"
	"boxgate/api/lifecycle"
	"boxgate/api/openapi"
	"boxgate/api/rest"
	"boxgate/api/rules"
	"boxgate/api/schedules"
	"boxgate/api/settings"
	"boxgate/api/snapshots"
	trailroom "boxgate/api/trail"
	"boxgate/api/urls"
)

// room is a package of endpoints, and what the description says they are about.
type room struct {
	name, about string
	endpoints   interface{ Routes() []rest.Route }
}

// rooms are all endpoints but the description of them.
func (a *API) rooms() []room {
	bodies, past, output := a.bodies(), a.History, capture.New(a.MaxBuffered)
	return []room{
		{"boxes", "The life of boxes", &boxes.Endpoints{Host: a.Host, History: past, Bodies: bodies, HasSecret: a.HasSecret}},
		{"lifecycle", "Pausing, resuming and starting boxes", &lifecycle.Endpoints{Host: a.Host, History: past, Bodies: bodies}},
		{"commands", "Commands in boxes", &exec.Endpoints{Host: a.Host, History: past, Bodies: bodies, MaxOutput: a.MaxOutput, Output: output}},
		{"agents", "Custom harnesses of boxes", &harness.Endpoints{Host: a.Host, Errands: a.Host, History: past, Bodies: bodies}},
		{"sessions", "Commands that their caller talks to", a.sessions},
		{"files", "Files of boxes", &files.Endpoints{Host: a.Host, Bodies: bodies, MaxRead: a.MaxRead, Output: output}},
		{"git", "Git in boxes", &git.Endpoints{Host: a.Host, History: past, Bodies: bodies, MaxOutput: a.MaxOutput, Output: output}},
		{"rules", "What boxes may reach, and the headers set for them", &rules.Endpoints{Host: a.Host, History: past, Bodies: bodies, HasSecret: a.HasSecret}},
		{"decisions", "What was decided about the traffic of boxes", &egress.Endpoints{Host: a.Host, Bodies: bodies, Stopping: a.stopping}},
		{"urls", "Public URLs of boxes", &urls.Endpoints{Host: a.Host, History: past, Bodies: bodies}},
		{"schedules", "What boxes do again and again", &schedules.Endpoints{Host: a.Host, History: past, Bodies: bodies}},
		{"snapshots", "Snapshots of boxes", &snapshots.Endpoints{Host: a.Host, History: past, Bodies: bodies}},
		{"settings", "What can be changed of boxes besides their rules", &settings.Endpoints{Host: a.Host, History: past, Bodies: bodies}},
		{"keys", "The keys of the API", &keys.Endpoints{Host: a.Host, Bodies: bodies}},
		{"audit", "Who changed what", &trailroom.Endpoints{Host: a.Host, Stopping: a.stopping}},
		{"gateway", "The gateway itself", &gateway.Endpoints{Host: a.Host, Bodies: bodies, Started: a.started}},
	}
}

// addRoutes puts the endpoints of every room on the mux, and the description of them all, which is made when it is first asked for.
func (a *API) addRoutes() {
	var describe func() ([]byte, error)
	self := rest.Route{
		Method: "GET", Path: "/openapi.json", ID: "getDescription", Summary: "This description", Produces: []string{"application/json"},
		Handle: func(w http.ResponseWriter, _ *http.Request) (rest.Reply, error) {
			doc, err := describe()
			if err != nil {
				return rest.Reply{}, err
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			_, _ = w.Write(doc)
			return rest.Reply{Written: true}, nil
		},
	}
	subjects := []openapi.Subject{{Name: "description", Description: "The description of the API", Routes: []rest.Route{self}}}
	for _, r := range a.rooms() {
		subjects = append(subjects, openapi.Subject{Name: r.name, Description: r.about, Routes: r.endpoints.Routes()})
	}
	for _, s := range subjects {
		a.routes = append(a.routes, s.Routes...)
	}
	for _, rt := range a.routes {
		a.mux.Handle(rt.Pattern(), a.permitted(rt))
		a.public[rt.Pattern()] = rt.Public
	}
	describe = sync.OnceValues(func() ([]byte, error) { return openapi.Describe(subjects) })
}
