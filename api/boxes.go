package api

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"boxgate/policy"
)

func asInvalid(err error) (*policy.InvalidError, bool) {
	return errors.AsType[*policy.InvalidError](err)
}

// box finds the box that the path names by ID or name.
func (a *API) box(r *http.Request) (Box, error) { return a.find(r, r.PathValue("id")) }

func (a *API) find(r *http.Request, idOrName string) (Box, error) {
	if !namePat.MatchString(idOrName) {
		return Box{}, Errorf(ErrNotFound, "no box has the ID or name %q", clip(idOrName))
	}
	box, err := a.Host.Box(r.Context(), idOrName)
	if errors.Is(err, ErrNotFound) {
		return Box{}, Errorf(ErrNotFound, "no box has the ID or name %q", idOrName)
	}
	return box, err
}

func (a *API) listBoxes(_ http.ResponseWriter, r *http.Request) (reply, error) {
	boxes, err := a.Host.Boxes(r.Context(), BoxFilter{Label: r.URL.Query().Get("label")})
	if err != nil {
		return reply{}, err
	}
	views := make([]boxView, 0, len(boxes))
	for _, b := range boxes {
		views = append(views, viewBox(b))
	}
	return reply{body: views}, nil
}

func (a *API) getBox(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	return reply{body: viewBox(box)}, nil
}

func (a *API) getStatus(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	return reply{body: statusView{box.Status, box.Error}}, nil
}

func (a *API) deleteBox(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	return a.deleteAll(r, []Box{box})
}

// deleteBoxes looks up all boxes before it deletes the first, so that a mistyped ID does not leave half the work done.
func (a *API) deleteBoxes(w http.ResponseWriter, r *http.Request) (reply, error) {
	var body deleteBody
	if err := a.decode(w, r, &body); err != nil {
		return reply{}, err
	}
	if len(body.IDs) == 0 || len(body.IDs) > 1000 {
		return reply{}, invalid("/ids", "must name 1 to 1000 boxes")
	}
	var boxes []Box
	var unknown []string
	for _, id := range body.IDs {
		box, err := a.find(r, id)
		switch {
		case errors.Is(err, ErrNotFound):
			unknown = append(unknown, strconv.Quote(clip(id)))
		case err != nil:
			return reply{}, err
		default:
			boxes = append(boxes, box)
		}
	}
	if len(unknown) > 0 {
		return reply{}, Errorf(ErrNotFound, "nothing was deleted: no box has the ID or name %s", strings.Join(unknown, ", "))
	}
	return a.deleteAll(r, boxes)
}

func (a *API) deleteAll(r *http.Request, boxes []Box) (reply, error) {
	gone := deletedView{Deleted: []policy.BoxID{}}
	for _, box := range boxes {
		// A box that has gone by now, or was named twice, counts as deleted.
		if err := a.Host.DeleteBox(r.Context(), box.ID); err != nil && !errors.Is(err, ErrNotFound) {
			return reply{}, err
		}
		a.history.forget(box.ID)
		gone.Deleted = append(gone.Deleted, box.ID)
	}
	return reply{body: gone}, nil
}

// onlyQuery refuses query parameters that a route does not know, repeated ones, and queries that cannot be parsed:
// nothing is silently ignored.
func onlyQuery(r *http.Request, known []string) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return refuse(http.StatusUnprocessableEntity, "the query cannot be parsed; write it as name=value, joined by &")
	}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return refuse(http.StatusUnprocessableEntity, "unknown query parameter %q", clip(name))
		}
		if len(values) > 1 {
			return refuse(http.StatusUnprocessableEntity, "query parameter %q is given twice", clip(name))
		}
	}
	return nil
}
