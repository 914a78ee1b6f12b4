package rest

import (
	"context"
	"errors"
	"net/http"
	"regexp"

	"boxgate/api"
	"boxgate/api/problem"
)

var boxName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// IsBoxName reports whether a box may have the name; every ID is one as well.
func IsBoxName(s string) bool { return boxName.MatchString(s) }

// Finder finds a box.
type Finder interface {
	// Box finds a box by its ID or its name; the ID wins.
	Box(ctx context.Context, idOrName string) (api.Box, error)
}

// Box finds the box that the path of the request names as {id}.
func Box(r *http.Request, boxes Finder) (api.Box, error) {
	return FindBox(r.Context(), boxes, r.PathValue("id"))
}

// FindBox finds the box of that ID or name, among those that the caller's key may know of. The error says which one is not
// there, and is the same for a box of others.
func FindBox(ctx context.Context, boxes Finder, idOrName string) (api.Box, error) {
	if !IsBoxName(idOrName) {
		return api.Box{}, api.Errorf(api.ErrNotFound, "no box has the ID or name %q", problem.Clip(idOrName))
	}
	box, err := boxes.Box(ctx, idOrName)
	if err == nil && !api.CallerOf(ctx).Sees(box) {
		box, err = api.Box{}, api.ErrNotFound
	}
	if errors.Is(err, api.ErrNotFound) {
		return api.Box{}, api.Errorf(api.ErrNotFound, "no box has the ID or name %q", idOrName)
	}
	return box, err
}
