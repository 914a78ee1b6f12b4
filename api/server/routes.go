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
	trailapi "boxgate/api/trail"
	"boxgate/api/urls"
)

// endpoints is a package of endpoints with its name and description in the OpenAPI document.
type endpoints struct {
	name, about string
	pkg         interface{ Routes() []rest.Route }
}

// packages returns all endpoints except that of the OpenAPI document.
func (a *API) packages() []endpoints {
	bodies, past, output := a.bodies(), a.History, capture.New(a.MaxBuffered)
	return []endpoints{
		{"boxes", "Creating, attaching, listing and deleting boxes", &boxes.Endpoints{Boxes: a.Boxes, Host: a.Life, Snapshots: a.Snapshots, SelfTests: a.SelfTests, History: past, Bodies: bodies, HasSecret: a.HasSecret}},
		{"lifecycle", "Pausing, resuming and starting boxes", &lifecycle.Endpoints{Boxes: a.Boxes, Host: a.Lifecycle, History: past, Bodies: bodies}},
		{"commands", "Commands in boxes", &exec.Endpoints{Boxes: a.Boxes, Host: a.Commands, Events: a.Decisions, History: past, Bodies: bodies, MaxOutput: a.MaxOutput, Output: output}},
		{"agents", "Custom harnesses of boxes", &harness.Endpoints{Boxes: a.Boxes, Commands: a.Commands, Webhooks: a.Webhooks, History: past, Bodies: bodies}},
		{"sessions", "Interactive commands", a.sessions},
		{"files", "Files of boxes", &files.Endpoints{Boxes: a.Boxes, Host: a.Files, Bodies: bodies, MaxRead: a.MaxRead, Output: output}},
		{"git", "Git in boxes", &git.Endpoints{Boxes: a.Boxes, Host: a.Git, Commands: a.Commands, Rules: a.Rules, History: past, Bodies: bodies, MaxOutput: a.MaxOutput, Output: output}},
		{"rules", "Network policies and header rules", &rules.Endpoints{Boxes: a.Boxes, Host: a.Rules, History: past, Bodies: bodies, HasSecret: a.HasSecret}},
		{"decisions", "Decisions about the traffic of boxes", &egress.Endpoints{Boxes: a.Boxes, Host: a.Decisions, Rules: a.Explain, Bodies: bodies, Stopping: a.stopping}},
		{"urls", "Public URLs of boxes", &urls.Endpoints{Boxes: a.Boxes, Host: a.URLs, History: past, Bodies: bodies}},
		{"schedules", "Schedules of boxes", &schedules.Endpoints{Boxes: a.Boxes, Host: a.Schedules, History: past, Bodies: bodies}},
		{"snapshots", "Snapshots of boxes", &snapshots.Endpoints{Boxes: a.Boxes, Host: a.Snapshots, History: past, Bodies: bodies}},
		{"settings", "Other settings of boxes", &settings.Endpoints{Boxes: a.Boxes, Host: a.Settings, Rules: a.BoxRules, History: past, Bodies: bodies}},
		{"keys", "API keys", &keys.Endpoints{Boxes: a.Boxes, Host: a.Keys, Bodies: bodies}},
		{"audit", "The audit trail", &trailapi.Endpoints{Boxes: a.Boxes, Host: a.TrailReader, Stopping: a.stopping}},
		{"gateway", "The gateway itself", &gateway.Endpoints{
			Boxes: a.Boxes, Health: a.Health, Store: a.Store, Secrets: a.Secrets, Authorities: a.Authorities, Events: a.Decisions, Bodies: bodies, Started: a.started,
		}},
	}
}

// addRoutes registers the endpoints of every package, and the OpenAPI document that describes them, which is generated on
// first use.
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
	for _, r := range a.packages() {
		subjects = append(subjects, openapi.Subject{Name: r.name, Description: r.about, Routes: r.pkg.Routes()})
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
