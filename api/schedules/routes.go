package schedules

import (
	"context"
	"net/http"
	"reflect"
	"slices"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/strict"
)

// Endpoints serves the schedules.
type Endpoints struct {
	Boxes   rest.Finder
	Host    Host
	History *history.History
	Bodies  strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	view := reflect.TypeFor[scheduleView]()
	const all, one = "/v2/box/{id}/schedules", "/v2/box/{id}/schedules/{schedule}"
	return []rest.Route{
		{Method: "POST", Path: all, ID: "addSchedule", Summary: "Schedule a command", Status: 201, Request: reflect.TypeFor[scheduleBody](), Example: `{"type":"exec","cron":"*/5 * * * *","command":["sh","-c","date >> log"]}`, Response: view, Handle: e.add},
		{Method: "GET", Path: all, ID: "listSchedules", Summary: "The schedules of a box, oldest first", Response: reflect.TypeFor[[]scheduleView](), Handle: e.list},
		{Method: "GET", Path: one, ID: "getSchedule", Summary: "One schedule of a box", Response: view, Handle: e.get},
		{Method: "PATCH", Path: one, ID: "changeSchedule", Summary: "Change a schedule; absent fields stay unchanged", Request: reflect.TypeFor[scheduleChangeBody](), Example: `{"cron":"0 9 * * *"}`, Response: view, Handle: e.change},
		{Method: "DELETE", Path: one, ID: "deleteSchedule", Summary: "Delete a schedule; a run in progress continues", Response: reflect.TypeFor[rest.OK](), Handle: e.delete},
		{Method: "POST", Path: one + "/pause", ID: "pauseSchedule", Summary: "Pause a schedule", Response: view, Handle: e.pause},
		{Method: "POST", Path: one + "/resume", ID: "resumeSchedule", Summary: "Resume a schedule; runs that were due in the meantime are skipped", Response: view, Handle: e.resume},
	}
}

func (e *Endpoints) add(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var body scheduleBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	s, err := body.spec()
	if err != nil {
		return rest.Reply{}, err
	}
	made, err := e.Host.AddSchedule(r.Context(), box.ID, s)
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "schedule %s added: %s", made.ID, made.Cron)
	return rest.Reply{Status: http.StatusCreated, Body: viewSchedule(made), Change: changed(box, made.ID, "made")}, nil
}

func (e *Endpoints) list(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	found, err := e.Host.Schedules(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	views := []scheduleView{}
	for _, s := range found {
		views = append(views, viewSchedule(s))
	}
	return rest.Reply{Body: views}, nil
}

func (e *Endpoints) get(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	found, err := e.Host.Schedules(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	id := r.PathValue("schedule")
	i := slices.IndexFunc(found, func(s Schedule) bool { return s.ID == id })
	if i < 0 {
		return rest.Reply{}, api.Errorf(api.ErrNotFound, "box %s has no schedule %q", box.ID, problem.Clip(id))
	}
	return rest.Reply{Body: viewSchedule(found[i])}, nil
}

func (e *Endpoints) change(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body scheduleChangeBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	return e.edit(r, "changed", func(ctx context.Context, box api.Box, id string) (Schedule, error) {
		return e.Host.ChangeSchedule(ctx, box.ID, id, body.apply)
	})
}

func (e *Endpoints) pause(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.edit(r, "paused", func(ctx context.Context, box api.Box, id string) (Schedule, error) {
		return e.Host.PauseSchedule(ctx, box.ID, id, true)
	})
}

func (e *Endpoints) resume(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.edit(r, "resumed", func(ctx context.Context, box api.Box, id string) (Schedule, error) {
		return e.Host.PauseSchedule(ctx, box.ID, id, false)
	})
}

// edit changes the schedule in the path of the request.
func (e *Endpoints) edit(r *http.Request, what string, change func(context.Context, api.Box, string) (Schedule, error)) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	s, err := change(r.Context(), box, r.PathValue("schedule"))
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "schedule %s %s", s.ID, what)
	return rest.Reply{Body: viewSchedule(s), Change: changed(box, s.ID, what)}, nil
}

// changed describes a change of a schedule for the audit trail, without its command, which may contain secrets.
func changed(box api.Box, id, how string) *rest.Change {
	return &rest.Change{Box: box.ID, What: map[string]any{"schedule_" + how: id}}
}

func (e *Endpoints) delete(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	id := r.PathValue("schedule")
	if err := e.Host.DeleteSchedule(r.Context(), box.ID, id); err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "schedule %s deleted", id)
	reply := rest.Done()
	reply.Change = changed(box, id, "deleted")
	return reply, nil
}
