package snapshots

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Host keeps the snapshots. Errors are as those of [api.Host].
type Host interface {
	Box(ctx context.Context, idOrName string) (api.Box, error)
	// TakeSnapshot takes a snapshot of a box, which stands still for a moment unless it is paused. It may return before the
	// snapshot is ready (clients poll). A box that cannot have one now is an ErrConflict.
	TakeSnapshot(ctx context.Context, id policy.BoxID, name string) (api.Snapshot, error)
	// Snapshots lists the snapshots of a box, which may have been deleted, or all for "", oldest first.
	Snapshots(ctx context.Context, box policy.BoxID) ([]api.Snapshot, error)
	// DeleteSnapshots deletes snapshots. If one does not exist the error is an ErrNotFound, and none is deleted.
	DeleteSnapshots(ctx context.Context, ids []string) error
}

// Endpoints serves the snapshots.
type Endpoints struct {
	Host    Host
	History *history.History
	Bodies  strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box/{id}/snapshots", ID: "takeSnapshot", Summary: "Take a snapshot of a running or paused box; it is being taken while its status is creating", Status: 201, Request: reflect.TypeFor[snapshotBody](), Example: `{"name":"after setup"}`, Response: reflect.TypeFor[snapshotView](), Handle: e.take},
		{Method: "GET", Path: "/v2/box/{id}/snapshots", ID: "listBoxSnapshots", Summary: "The snapshots of a box, by its ID also when it was deleted", Response: reflect.TypeFor[snapshotsView](), Handle: e.listOfBox},
		{Method: "DELETE", Path: "/v2/box/{id}/snapshots/{snapshot}", ID: "deleteSnapshot", Summary: "Delete a snapshot of a box; boxes made from it stay", Response: reflect.TypeFor[snapshotsDeletedView](), Handle: e.deleteOne},
		{Method: "GET", Path: "/v2/box/snapshots", ID: "listSnapshots", Summary: "All snapshots", Response: reflect.TypeFor[snapshotsView](), Handle: e.list},
		{Method: "DELETE", Path: "/v2/box/snapshots", ID: "deleteSnapshots", Summary: "Delete the snapshots that ids names, or all without ids; if one is unknown, none is deleted", Request: reflect.TypeFor[deleteSnapshotsBody](), Example: `{"ids":["snap_0123456789abcdef"]}`, Response: reflect.TypeFor[snapshotsDeletedView](), Handle: e.deleteMany},
	}
}

// snapshotBody is the JSON of a request for a snapshot.
type snapshotBody struct {
	Name string `json:"name,omitempty" doc:"at most 256 bytes; snapshots may share one"`
}

// snapshotView is a snapshot in JSON.
type snapshotView struct {
	ID        string       `json:"id" example:"snap_0123456789abcdef"`
	Name      string       `json:"name"`
	BoxID     policy.BoxID `json:"box_id"`
	SizeBytes int64        `json:"size_bytes" doc:"on disk, without the image; snapshots of the same box share some of it"`
	Status    string       `json:"status" enum:"creating ready error"`
	Error     string       `json:"error,omitempty" doc:"why the status is error"`
	CreatedAt int64        `json:"created_at" doc:"Unix seconds"`
}

type snapshotsView struct {
	Snapshots []snapshotView `json:"snapshots"`
}

// deleteSnapshotsBody says which snapshots to delete. Without ids it is all of them; an empty list is refused, because it is more
// likely that somebody found nothing to delete than that he wants to delete everything.
type deleteSnapshotsBody struct {
	IDs *[]string `json:"ids,omitempty" doc:"1 to 1000; absent: all snapshots"`
}

type snapshotsDeletedView struct {
	Deleted int `json:"deleted" doc:"how many"`
}

// maxIDs bounds how many snapshots one request names.
const maxIDs = 1000

func view(s api.Snapshot) snapshotView {
	return snapshotView{s.ID, s.Name, s.Box, s.Size, s.Status, s.Error, s.CreatedAt.Unix()}
}

func (e *Endpoints) take(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body snapshotBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	if len(body.Name) > 256 || strings.ContainsFunc(body.Name, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return rest.Reply{}, problem.Invalid("/name", "must be at most 256 bytes without control characters")
	}
	box, err := rest.Box(r, e.Host)
	if err != nil {
		return rest.Reply{}, err
	}
	s, err := e.Host.TakeSnapshot(r.Context(), box.ID, body.Name)
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "system", "snapshot %s: %s", s.ID, s.Status)
	return rest.Reply{Status: http.StatusCreated, Body: view(s)}, nil
}

func (e *Endpoints) list(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.listed(e.Host.Snapshots(r.Context(), ""))
}

// listOfBox also finds the snapshots of a box that was deleted.
func (e *Endpoints) listOfBox(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	id, err := e.box(r)
	if err == nil {
		return e.listed(e.Host.Snapshots(r.Context(), id))
	}
	list, lerr := e.Host.Snapshots(r.Context(), policy.BoxID(r.PathValue("id")))
	if lerr != nil || len(list) == 0 {
		return rest.Reply{}, errors.Join(err, lerr)
	}
	return e.listed(list, nil)
}

func (e *Endpoints) listed(list []api.Snapshot, err error) (rest.Reply, error) {
	views := make([]snapshotView, 0, len(list))
	for _, s := range list {
		views = append(views, view(s))
	}
	return rest.Reply{Body: snapshotsView{views}}, err
}

// box returns the ID of the box in the path.
func (e *Endpoints) box(r *http.Request) (policy.BoxID, error) {
	box, err := rest.Box(r, e.Host)
	return box.ID, err
}

func (e *Endpoints) deleteOne(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	id, err := e.box(r)
	if err != nil { // the box may be gone; its snapshots have its ID
		id = policy.BoxID(r.PathValue("id"))
	}
	list, lerr := e.Host.Snapshots(r.Context(), id)
	if lerr != nil {
		return rest.Reply{}, lerr
	}
	snapshot := r.PathValue("snapshot")
	if id == "" || !slices.ContainsFunc(list, func(s api.Snapshot) bool { return s.ID == snapshot }) {
		if err == nil || len(list) > 0 {
			err = api.Errorf(api.ErrNotFound, "the box has no snapshot %q", problem.Clip(snapshot))
		}
		return rest.Reply{}, err
	}
	return e.delete(r, []string{snapshot})
}

func (e *Endpoints) deleteMany(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body deleteSnapshotsBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	list, err := e.Host.Snapshots(r.Context(), "")
	if err != nil {
		return rest.Reply{}, err
	}
	there := make([]string, 0, len(list))
	for _, s := range list {
		there = append(there, s.ID)
	}
	if body.IDs == nil {
		return e.delete(r, there)
	}
	ids := slices.Compact(slices.Sorted(slices.Values(*body.IDs)))
	if len(ids) == 0 || len(ids) > maxIDs {
		return rest.Reply{}, problem.Invalid("/ids", "must name 1 to %d snapshots; leave ids out to delete all of them", maxIDs)
	}
	var unknown []string
	for _, id := range ids {
		if !slices.Contains(there, id) {
			unknown = append(unknown, strconv.Quote(problem.Clip(id)))
		}
	}
	if len(unknown) > 0 {
		return rest.Reply{}, api.Errorf(api.ErrNotFound, "nothing was deleted: there is no snapshot %s", strings.Join(unknown, ", "))
	}
	return e.delete(r, ids)
}

func (e *Endpoints) delete(r *http.Request, ids []string) (rest.Reply, error) {
	if err := e.Host.DeleteSnapshots(r.Context(), ids); err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: snapshotsDeletedView{len(ids)}}, nil
}
