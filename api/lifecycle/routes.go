package lifecycle

import (
	"context"
	"net/http"
	"reflect"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/rest"
	"boxgate/policy"
)

// Host is what the endpoints need of the gateway. Both methods return the box as it is then.
type Host interface {
	Box(ctx context.Context, idOrName string) (api.Box, error)
	// PauseBox freezes a box. One that is paused stays so; one that cannot be paused is an ErrConflict.
	PauseBox(ctx context.Context, id policy.BoxID) (api.Box, error)
	// ResumeBox lets a paused box go on. One that runs stays so.
	ResumeBox(ctx context.Context, id policy.BoxID) (api.Box, error)
}

// Endpoints serves what pauses and resumes boxes.
type Endpoints struct {
	Host    Host
	History *history.History
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box/{id}/pause", ID: "pauseBox", Summary: "Freeze a box: it keeps its memory and uses no CPU", Response: reflect.TypeFor[stateView](), Handle: e.pause},
		{Method: "POST", Path: "/v2/box/{id}/resume", ID: "resumeBox", Summary: "Let a paused box go on", Response: reflect.TypeFor[stateView](), Handle: e.resume},
	}
}

// stateView is the answer of pause and resume.
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

// change changes the state of a box and logs that.
func (e *Endpoints) change(r *http.Request, to func(context.Context, policy.BoxID) (api.Box, error), what string) (rest.Reply, error) {
	box, err := rest.Box(r, e.Host)
	if err != nil {
		return rest.Reply{}, err
	}
	if box, err = to(r.Context(), box.ID); err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "system", "%s", what)
	return rest.Reply{Body: stateView{box.ID, box.Status}}, nil
}
