package egress

import (
	"net/http"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/api/stream"
	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// searchQuery selects decisions on disk.
type searchQuery struct {
	Since  string `json:"since,omitempty" doc:"a time, a date (UTC), Unix seconds, or a duration back from now" example:"48h"`
	Until  string `json:"until,omitempty" doc:"like since; only decisions before it" example:"24h"`
	Host   string `json:"host,omitempty" doc:"a name, *.name for all below it, or an address" example:"*.example.com"`
	Reason string `json:"reason,omitempty" doc:"one of the reasons" example:"not_allowed"`
	Denied bool   `json:"denied,omitempty" doc:"only denials"`
}

// searchAllQuery is searchQuery for all boxes.
type searchAllQuery struct {
	searchQuery
	Box string `json:"box,omitempty" doc:"ID of a box, which may be deleted, or name of an existing box"`
}

func (q *searchQuery) filter() (api.EventSearch, error) {
	window, err := rest.Window(q.Since, q.Until)
	return api.EventSearch{Since: window.Since, Until: window.Until, Host: q.Host, Reason: name.Reason(q.Reason), Denied: q.Denied}, err
}

func (e *Endpoints) searchBox(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var q searchQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	return e.search(w, r, &q, box.ID)
}

func (e *Endpoints) searchAll(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var q searchAllQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	id := policy.BoxID(q.Box)
	if box, err := e.Boxes.Box(r.Context(), q.Box); q.Box != "" && err == nil {
		id = box.ID
	}
	return e.search(w, r, &q.searchQuery, id)
}

// search streams the matching decisions. The response begins with the first decision, so that an earlier error gets its
// own status. A header contains the time since which the log is complete.
func (e *Endpoints) search(w http.ResponseWriter, r *http.Request, q *searchQuery, box policy.BoxID) (rest.Reply, error) {
	f, err := q.filter()
	if err != nil {
		return rest.Reply{}, err
	}
	f.Box = box
	s := &eventWriter{w: w, rc: http.NewResponseController(w)}
	begun := false
	begin := func() {
		if !begun {
			begun = true
			s.begin("")
		}
	}
	whole := func(since time.Time) { w.Header().Set(stream.WholeHeader, since.UTC().Format(time.RFC3339Nano)) }
	err = e.Host.SearchEvents(r.Context(), f, whole, func(event audit.Event) error {
		begin()
		return s.event(event)
	})
	if err != nil && !begun {
		return rest.Reply{}, err
	}
	if err != nil {
		panic(http.ErrAbortHandler) // otherwise the client would take a partial response for a complete one
	}
	begin()
	return rest.Reply{Written: true}, nil
}
