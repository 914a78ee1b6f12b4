package egress

import (
	"net/http"
	"time"

	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/observe"
	"boxgate/policy"
)

// observationsQuery selects observations.
type observationsQuery struct {
	Since  string `json:"since,omitempty" doc:"a time, a date (UTC), Unix seconds, or a duration back from now; only what was seen at or after it" example:"48h"`
	Denied bool   `json:"denied,omitempty" doc:"only denials"`
}

// observationsView is the traffic of a box in JSON.
type observationsView struct {
	Observations []observe.Observation `json:"observations" doc:"the latest first; a count covers all decisions since first_seen"`
	Overflow     uint64                `json:"overflow" doc:"decisions that are in no observation, because the box has as many as it may have"`
	Lost         uint64                `json:"lost" doc:"decisions that arrived faster than they could be summed up"`
	Since        *time.Time            `json:"complete_since,omitempty" doc:"older observations may have been removed for their age or for space; absent: none were"`
}

// pastObservationsQuery is observationsQuery with the box.
type pastObservationsQuery struct {
	observationsQuery
	Box string `json:"box" doc:"ID of a box, which may be deleted, or name of an existing box" example:"k3f9x2abcd"`
}

// observations returns the traffic of a box, summed up.
func (e *Endpoints) observations(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var q observationsQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	return e.observed(r, &q, box.ID)
}

// pastObservations returns the traffic of a box that may have been deleted. The list of an unknown box is empty.
func (e *Endpoints) pastObservations(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var q pastObservationsQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	if q.Box == "" {
		return rest.Reply{}, problem.Refuse(http.StatusUnprocessableEntity, `query parameter "box" is required: the ID of a box`)
	}
	id := policy.BoxID(q.Box)
	if box, err := e.Boxes.Box(r.Context(), q.Box); err == nil {
		id = box.ID
	}
	return e.observed(r, &q.observationsQuery, id)
}

// observed returns the selected observations of a box.
func (e *Endpoints) observed(r *http.Request, q *observationsQuery, box policy.BoxID) (rest.Reply, error) {
	window, err := rest.Window(q.Since, "")
	if err != nil {
		return rest.Reply{}, err
	}
	s, err := e.Host.Observations(r.Context(), box)
	if err != nil {
		return rest.Reply{}, err
	}
	view := observationsView{Observations: []observe.Observation{}, Overflow: s.Overflow, Lost: s.Lost}
	if !s.Since.IsZero() {
		view.Since = &s.Since
	}
	for _, o := range s.Observations {
		if !o.Last.Before(window.Since) && (!q.Denied || o.Verdict != policy.Allow) {
			view.Observations = append(view.Observations, o)
		}
	}
	return rest.Reply{Body: view}, nil
}
