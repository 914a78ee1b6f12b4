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

// IsBoxName reports whether a box may have the name. Every ID is a valid name, too.
func IsBoxName(s string) bool { return boxName.MatchString(s) }

// Finder finds a box.
type Finder interface {
	// Box finds a box by its ID or name. The ID takes precedence.
	Box(ctx context.Context, idOrName string) (api.Box, error)
}

// Box finds the box given as {id} in the path of the request.
func Box(r *http.Request, boxes Finder) (api.Box, error) {
	return FindBox(r.Context(), boxes, r.PathValue("id"))
}

// FindBox finds a box by ID or name among the boxes that the caller's key may see. The error names the missing box, and
// is the same for a box that the key may not see.
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
