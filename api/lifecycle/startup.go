package lifecycle

import (
	"net/http"

	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
)

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
