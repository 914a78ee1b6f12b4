package boxes

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// listQuery selects boxes.
type listQuery struct {
	Label string `json:"label,omitempty" doc:"only boxes with this label" example:"beta"`
}

func (e *Endpoints) listBoxes(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var query listQuery
	if err := rest.Query(r, &query); err != nil {
		return rest.Reply{}, err
	}
	boxes, err := e.Boxes.Boxes(r.Context(), api.BoxFilter{Label: query.Label})
	if err != nil {
		return rest.Reply{}, err
	}
	views, caller := make([]boxView, 0, len(boxes)), api.CallerOf(r.Context())
	for _, b := range boxes {
		if caller.Sees(b) {
			views = append(views, viewFor(caller, b))
		}
	}
	return rest.Reply{Body: views}, nil
}

func (e *Endpoints) getBox(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: viewFor(api.CallerOf(r.Context()), box)}, nil
}

func (e *Endpoints) getStatus(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: statusView{box.Status, box.Error}}, nil
}

func (e *Endpoints) deleteBox(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.deleteAll(r, []api.Box{box})
}

// deleteBoxes finds all boxes before it deletes the first, so that a mistyped ID does not cause a partial deletion.
func (e *Endpoints) deleteBoxes(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body deleteBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	if len(body.IDs) == 0 || len(body.IDs) > 1000 {
		return rest.Reply{}, problem.Invalid("/ids", "must name 1 to 1000 boxes")
	}
	var boxes []api.Box
	var unknown []string
	for _, id := range body.IDs {
		box, err := rest.FindBox(r.Context(), e.Boxes, id)
		switch {
		case errors.Is(err, api.ErrNotFound):
			unknown = append(unknown, strconv.Quote(problem.Clip(id)))
		case err != nil:
			return rest.Reply{}, err
		default:
			boxes = append(boxes, box)
		}
	}
	if len(unknown) > 0 {
		return rest.Reply{}, api.Errorf(api.ErrNotFound, "nothing was deleted: no box has the ID or name %s", strings.Join(unknown, ", "))
	}
	return e.deleteAll(r, boxes)
}

func (e *Endpoints) deleteAll(r *http.Request, boxes []api.Box) (rest.Reply, error) {
	deleted := deletedView{Deleted: []policy.BoxID{}}
	for _, box := range boxes {
		// A box that no longer exists, or was listed twice, counts as deleted.
		if err := e.Host.DeleteBox(r.Context(), box.ID); err != nil && !errors.Is(err, api.ErrNotFound) {
			return rest.Reply{}, err
		}
		deleted.Deleted = append(deleted.Deleted, box.ID)
	}
	what := map[string]any{"deleted": deleted.Deleted}
	if names := namesOf(boxes); len(names) > 0 {
		what["names"] = names
	}
	return rest.Reply{Body: deleted, Change: &rest.Change{What: what}}, nil
}

// namesOf returns the names of boxes, leaving out boxes without a name.
func namesOf(boxes []api.Box) map[policy.BoxID]string {
	names := map[policy.BoxID]string{}
	for _, b := range boxes {
		if b.Name != "" {
			names[b.ID] = b.Name
		}
	}
	return names
}
