package egress

import (
	"cmp"
	"net/http"
	"slices"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/audit"
	"boxgate/policy"
)

// activityView is the activity of one box.
type activityView struct {
	Box    policy.BoxID `json:"box"`
	Denied uint64       `json:"denied_last_hour" doc:"number of denials, complete even where the gateway no longer has the decisions in memory"`
	Latest audit.Event  `json:"latest" doc:"the latest decision"`
}

// activity lists the activity of the boxes that the caller sees. Boxes without a decision since the start of the gateway are
// missing.
func (e *Endpoints) activity(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	all, err := e.Host.Activity(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	views := []activityView{}
	for id, a := range all {
		if id != "" && e.sees(r, id) {
			views = append(views, activityView{id, a.Denied, a.Latest})
		}
	}
	slices.SortFunc(views, func(a, b activityView) int { return cmp.Compare(a.Box, b.Box) })
	return rest.Reply{Body: views}, nil
}

// sees reports whether the caller sees a box. Boxes are looked up only for keys that do not see all of them.
func (e *Endpoints) sees(r *http.Request, id policy.BoxID) bool {
	caller := api.CallerOf(r.Context())
	if caller.Sees(api.Box{ID: id}) {
		return true
	}
	box, err := e.Boxes.Box(r.Context(), string(id))
	return err == nil && box.ID == id && caller.Sees(box)
}
