// Package lifecycle serves pausing, resuming and the init command of boxes.
package lifecycle

import (
	"context"
	"net/http"
	"reflect"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Host pauses, resumes and starts boxes. PauseBox and ResumeBox return the box in its new state.
type Host interface {
	// PauseBox freezes a box. It has no effect on a paused box. A box that cannot be paused is an ErrConflict.
	PauseBox(ctx context.Context, id policy.BoxID) (api.Box, error)
	// ResumeBox resumes a paused box. It has no effect on a running box.
	ResumeBox(ctx context.Context, id policy.BoxID) (api.Box, error)
	// SetInitCommand replaces the command that runs at each start of the box; "" removes it. A box without keep_alive is
	// a *document.InvalidError.
	SetInitCommand(ctx context.Context, id policy.BoxID, command string) error
}

// Endpoints serves the lifecycle of boxes.
type Endpoints struct {
	Boxes   rest.Finder
	Host    Host
	History *history.History
	Bodies  strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	start := reflect.TypeFor[startBody]()
	const example = `{"init_command":"./server &"}`
	return []rest.Route{
		{Method: "POST", Path: "/v2/box/{id}/pause", ID: "pauseBox", Summary: "Freeze a box: it keeps its memory and uses no CPU", Response: reflect.TypeFor[stateView](), Handle: e.pause},
		{Method: "POST", Path: "/v2/box/{id}/resume", ID: "resumeBox", Summary: "Resume a paused box", Response: reflect.TypeFor[stateView](), Handle: e.resume},
		{Method: "GET", Path: "/v2/box/{id}/startup", ID: "getStartup", Summary: "The command that runs at each start of a box with keep_alive", Response: start, Handle: e.getStartup},
		{Method: "PUT", Path: "/v2/box/{id}/startup", ID: "setStartup", Summary: "Set the command that runs at each start of a box with keep_alive", Request: start, Example: example, Response: start, Handle: e.setStartup},
		{Method: "DELETE", Path: "/v2/box/{id}/startup", ID: "deleteStartup", Summary: "Remove the command that runs at each start of a box", Response: start, Handle: e.deleteStartup},
		{Method: "GET", Path: "/v2/box/{id}/config/init-command", ID: "getInitCommand", Summary: "The same as GET startup", Response: start, Handle: e.getStartup},
		{Method: "PUT", Path: "/v2/box/{id}/config/init-command", ID: "setInitCommand", Summary: "The same as PUT startup", Request: start, Example: example, Response: start, Handle: e.setStartup},
		{Method: "DELETE", Path: "/v2/box/{id}/config/init-command", ID: "deleteInitCommand", Summary: "The same as DELETE startup", Response: start, Handle: e.deleteStartup},
	}
}

// stateView is the response of pause and resume.
type stateView struct {
	ID     policy.BoxID `json:"id"`
	Status api.Status   `json:"status"`
}

func (e *Endpoints) pause(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.change(r, e.Host.PauseBox, "box paused")
}

func (e *Endpoints) resume(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.change(r, e.Host.ResumeBox, "box resumed")
}

// change changes the state of a box and logs the change.
func (e *Endpoints) change(r *http.Request, to func(context.Context, policy.BoxID) (api.Box, error), what string) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	if box, err = to(r.Context(), box.ID); err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "system", "%s", what)
	return rest.Reply{Body: stateView{box.ID, box.Status}}, nil
}

// startBody is the command that runs at each start of a box.
type startBody struct {
	InitCommand string `json:"init_command" doc:"a shell command; empty: none" example:"./server &"`
}

// maxInitCommand bounds an init command, in bytes.
const maxInitCommand = 64 << 10

func (e *Endpoints) getStartup(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: startBody{box.InitCommand}}, nil
}

func (e *Endpoints) setStartup(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body startBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	if body.InitCommand == "" {
		p.Add("/init_command", "is required; DELETE removes it")
	}
	spec.Text(&p, "/init_command", body.InitCommand, maxInitCommand, true)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	return e.start(r, body)
}

func (e *Endpoints) deleteStartup(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.start(r, startBody{})
}

// start replaces the init command of a box.
func (e *Endpoints) start(r *http.Request, body startBody) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	if err := e.Host.SetInitCommand(r.Context(), box.ID, body.InitCommand); err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: body}, nil
}
