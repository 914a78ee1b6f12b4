package boxes

import (
	"cmp"
	"encoding/json"
	"net/http"
	"reflect"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
)

// This part moves the end of a box while it exists.

const lifetimePath = "/v2/box/{id}/config/ttl"

// lifetimeBody is a new end of a box.
type lifetimeBody struct {
	TTL    *int64 `json:"ttl,omitempty" doc:"seconds from now; null: the box gets no end" min:"1" max:"259200" example:"3600"`
	Extend *int64 `json:"extend,omitempty" doc:"instead of ttl: seconds after its present end, which it must have" min:"1" max:"259200"`
}

// lifetimeView is the end of a box.
type lifetimeView struct {
	Ephemeral bool  `json:"ephemeral"`
	ExpiresAt int64 `json:"expires_at,omitempty" doc:"absent: the box has no end"`
	TTL       int64 `json:"ttl,omitempty" doc:"seconds that are left"`

	OnEnd string `json:"on_end" doc:"what happens then" enum:"delete pause"`
}

func (e *Endpoints) lifetimeRoutes() []rest.Route {
	return []rest.Route{
		{Method: "PUT", Path: lifetimePath, ID: "setLifetime", Summary: "Move the end of a box: to a time from now, or after its present end; or give it none", Request: reflect.TypeFor[lifetimeBody](), Example: `{"ttl":3600}`, Response: reflect.TypeFor[lifetimeView](), Handle: e.putLifetime},
		{Method: "POST", Path: "/v2/box/{id}/suspend", ID: "suspendBox", Summary: "Pause a box as at its end: its time stands still, and resume alone wakes it, or with auto_resume any use", Response: reflect.TypeFor[suspendedView](), Handle: e.suspend},
		{Method: "PUT", Path: "/v2/box/{id}/config/on-end", ID: "setEnd", Summary: "Set what happens at the end of a box: it is deleted, or paused until it is resumed", Request: reflect.TypeFor[endBody](), Example: `{"on_end":"pause"}`, Response: reflect.TypeFor[endView](), Handle: e.putEnd},
	}
}

// lifetime reads a new end from a body.
func lifetimeOf(data []byte) (set api.Lifetime, err error) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) == nil && len(fields) == 1 && string(fields["ttl"]) == "null" {
		return api.Lifetime{Unlimited: true}, strict.Check(data)
	}
	var body lifetimeBody
	if err := strict.Unmarshal(data, &body); err != nil {
		return set, err
	}
	at, seconds := "/ttl", body.TTL
	if body.Extend != nil {
		at, seconds = "/extend", body.Extend
	}
	switch most := int64(api.MaxTTL / time.Second); {
	case body.TTL != nil && body.Extend != nil:
		return set, problem.Invalid("/extend", "goes without ttl; give one of them")
	case seconds == nil:
		return set, problem.Invalid("/ttl", "is missing; give ttl (null for a box without an end) or extend")
	case *seconds < 1 || *seconds > most:
		return set, problem.Invalid(at, "must be between 1 and %d seconds", most)
	case at == "/ttl":
		set.TTL = time.Duration(*seconds) * time.Second
	default:
		set.Extend = time.Duration(*seconds) * time.Second
	}
	return set, nil
}

func (e *Endpoints) putLifetime(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	data, err := e.Bodies.Read(w, r)
	if err != nil {
		return rest.Reply{}, err
	}
	set, err := lifetimeOf(data)
	if err != nil {
		return rest.Reply{}, err
	}
	is, was, err := e.Host.SetLifetime(r.Context(), box.ID, set)
	if err != nil {
		return rest.Reply{}, err
	}
	view := lifetimeView{Ephemeral: is.Ephemeral, OnEnd: viewEnd(is).OnEnd}
	if is.ExpiresAt.IsZero() {
		e.History.Log(box.ID, "info", "user", "the box has no end")
	} else {
		view.ExpiresAt, view.TTL = is.ExpiresAt.Unix(), int64((time.Until(is.ExpiresAt)+time.Second-1)/time.Second)
		e.History.Log(box.ID, "info", "user", "the end of the box is at %s", is.ExpiresAt.UTC().Format(time.RFC3339))
	}
	return rest.Reply{Body: view, Change: &rest.Change{Box: box.ID, What: map[string]any{"expires_at": []int64{max(was.Unix(), 0), view.ExpiresAt}}}}, nil
}

// suspendedView is a box that is paused as at its end.
type suspendedView struct {
	ID          policy.BoxID `json:"id"`
	Status      api.Status   `json:"status"`
	PausedAtEnd bool         `json:"paused_at_end"`
	ExpiresAt   int64        `json:"expires_at,omitempty" doc:"when the box is deleted unless it is resumed; absent: it is kept"`
}

// suspend handles POST /v2/box/{id}/suspend.
func (e *Endpoints) suspend(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	if box, err = e.Host.SuspendBox(r.Context(), box.ID); err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "the box was paused until it is resumed")
	return rest.Reply{Body: suspendedView{box.ID, box.Status, box.PausedAtEnd, max(box.ExpiresAt.Unix(), 0)}, Change: &rest.Change{Box: box.ID, What: map[string]any{"suspended": true}}}, nil
}

// endBody is what happens at the end of a box.
type endBody struct {
	OnEnd      string `json:"on_end" enum:"delete pause"`
	AutoResume bool   `json:"auto_resume,omitempty" doc:"with pause: any use resumes the box; absent: only a call of resume does"`
}

// endView is the response of setEnd.
type endView struct {
	OnEnd      string `json:"on_end" enum:"delete pause"`
	AutoResume bool   `json:"auto_resume"`
}

func viewEnd(b api.Box) endView { return endView{cmp.Or(b.OnEnd, api.EndDelete), b.AutoResume} }

// checkEnd checks what happens at the end of a box. An empty OnEnd is the default.
func checkEnd(p *problem.List, end api.End) {
	if end.OnEnd != "" && end.OnEnd != api.EndDelete && end.OnEnd != api.EndPause {
		p.Add("/on_end", "must be delete or pause")
	}
	if end.AutoResume && end.OnEnd != api.EndPause {
		p.Add("/auto_resume", "needs on_end: pause")
	}
}

func (e *Endpoints) putEnd(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var body endBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	if body.OnEnd == "" {
		p.Add("/on_end", "is missing; give delete or pause")
	}
	end := api.End(body)
	checkEnd(&p, end)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	is, was, err := e.Host.SetEnd(r.Context(), box.ID, end)
	if err != nil {
		return rest.Reply{}, err
	}
	view := viewEnd(is)
	e.History.Log(box.ID, "info", "user", "at its end, the box is to be: %s", map[string]string{api.EndDelete: "deleted", api.EndPause: "paused"}[view.OnEnd])
	return rest.Reply{Body: view, Change: &rest.Change{Box: box.ID, What: map[string]any{"on_end": []endView{viewEnd(was), view}}}}, nil
}
