// Package snapshots serves the snapshots of boxes: taking, listing and deleting them. Package boxes creates boxes from
// snapshots.
package snapshots

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/elsewhere"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Host manages the snapshots. Errors are as in package api.
type Host interface {
	// TakeSnapshot takes a snapshot of a box, which is frozen briefly unless it is paused. It may return before the
	// snapshot is ready; clients poll. If the box cannot be snapshotted now, the error is an ErrConflict.
	TakeSnapshot(ctx context.Context, id policy.BoxID, name string) (api.Snapshot, error)
	// Snapshots lists the snapshots of a box, oldest first. The box may have been deleted. "" stands for all boxes.
	Snapshots(ctx context.Context, box policy.BoxID) ([]api.Snapshot, error)
	// DeleteSnapshots deletes snapshots. If any does not exist, it deletes no snapshot and returns an ErrNotFound.
	DeleteSnapshots(ctx context.Context, ids []string) error
}

// Sharing is a [Host] whose snapshots are in a store of several hosts.
type Sharing interface {
	// SnapshotStoreAway reports whether the store does not answer, so that lists have snapshots of other hosts as they were before, or none.
	SnapshotStoreAway() bool
}

// StoreHeader is the header of a list, with the value unreachable, if the store of several hosts does not answer.
const StoreHeader = "Boxgate-Snapshot-Store"

// Endpoints serves the snapshots.
type Endpoints struct {
	Boxes   rest.Finder
	Host    Host
	History *history.History
	Bodies  strict.Bodies
	Others  elsewhere.Hosts // nil: there is no fleet
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box/{id}/snapshots", ID: "takeSnapshot", Summary: "Take a snapshot of a running or paused box; it is ready once its status is no longer creating", Status: 201, Request: reflect.TypeFor[snapshotBody](), Example: `{"name":"after setup"}`, Response: reflect.TypeFor[snapshotView](), Handle: e.takeSnapshot},
		{Method: "GET", Path: "/v2/box/{id}/snapshots", ID: "listBoxSnapshots", Summary: "The snapshots of a box, which may be deleted if it is given by its ID", Response: reflect.TypeFor[snapshotsView](), Handle: e.listOfBox},
		{Method: "DELETE", Path: "/v2/box/{id}/snapshots/{snapshot}", ID: "deleteSnapshot", Summary: "Delete a snapshot of a box; boxes made from it stay", Response: reflect.TypeFor[snapshotsDeletedView](), Handle: e.deleteOne},
		{Method: "GET", Path: "/v2/box/snapshots", ID: "listSnapshots", Summary: "All snapshots that the key sees", Response: reflect.TypeFor[snapshotsView](), Handle: e.list},
		{Method: "DELETE", Path: "/v2/box/snapshots", ID: "deleteSnapshots", Summary: "Delete the snapshots listed in ids, or without ids all that the key sees; with an unknown ID, no snapshot is deleted", Request: reflect.TypeFor[deleteSnapshotsBody](), Example: `{"ids":["snap_0123456789abcdef"]}`, Response: reflect.TypeFor[snapshotsDeletedView](), Handle: e.deleteMany},
	}
}

// snapshotBody is the JSON of a request for a snapshot.
type snapshotBody struct {
	Name string `json:"name,omitempty" doc:"at most 256 bytes; need not be unique"`
}

// snapshotView is a snapshot in JSON.
type snapshotView struct {
	ID        string       `json:"id" example:"snap_0123456789abcdef"`
	Name      string       `json:"name"`
	BoxID     policy.BoxID `json:"box_id"`
	SizeBytes int64        `json:"size_bytes" doc:"size on disk without the image; snapshots of the same box may share part of it"`
	Status    string       `json:"status" enum:"creating ready error"`
	Error     string       `json:"error,omitempty" doc:"why the status is error"`
	CreatedAt int64        `json:"created_at" doc:"Unix seconds"`
	CreatedBy string       `json:"created_by,omitempty" doc:"ID of the API key that created the box; absent: the operator's, or the box was attached"`
}

type snapshotsView struct {
	Snapshots []snapshotView `json:"snapshots"`
}

// deleteSnapshotsBody lists the snapshots to delete. Without ids, all are deleted. An empty list is refused: it more
// likely comes from a client that found no snapshots than from one that wants to delete all of them.
type deleteSnapshotsBody struct {
	IDs *[]string `json:"ids,omitempty" doc:"1 to 1000; absent: all snapshots"`
}

type snapshotsDeletedView struct {
	Deleted int `json:"deleted" doc:"number of deleted snapshots"`
}

// maxIDs bounds the number of snapshots in one request.
const maxIDs = 1000

func view(s api.Snapshot) snapshotView {
	return snapshotView{s.ID, s.Name, s.Box, s.Size, s.Status, s.Error, s.CreatedAt.Unix(), s.CreatedBy}
}

func (e *Endpoints) takeSnapshot(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body snapshotBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	if len(body.Name) > 256 || strings.ContainsFunc(body.Name, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return rest.Reply{}, problem.Invalid("/name", "must be at most 256 bytes without control characters")
	}
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	s, err := e.Host.TakeSnapshot(r.Context(), box.ID, body.Name)
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "system", "snapshot %s: %s", s.ID, s.Status)
	return rest.Reply{Status: http.StatusCreated, Body: view(s), Change: &rest.Change{Box: box.ID, What: map[string]any{"snapshot_taken": s.ID}}}, nil
}

// list lists the snapshots of all hosts. Shared ones, which several hosts list, appear once.
func (e *Endpoints) list(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	list, err := e.visible(r, "")
	if err != nil || !elsewhere.Whole(e.Others, r) {
		return e.listReply(w, list, err)
	}
	e.nameStore(w)
	others, silent := e.elsewhere(r, list)
	elsewhere.NameSilent(w, silent)
	views := make([]snapshotView, 0, len(list)+len(others))
	for _, s := range list {
		views = append(views, view(s))
	}
	for _, s := range others {
		views = append(views, s.snapshotView)
	}
	slices.SortStableFunc(views, func(a, b snapshotView) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) })
	return rest.Reply{Body: snapshotsView{views}}, nil
}

// heldElsewhere is a snapshot of another host.
type heldElsewhere struct {
	snapshotView
	host string
}

// elsewhere returns the snapshots that other hosts show to the caller, except the ones that this host has too, and the hosts that do not
// answer.
func (e *Endpoints) elsewhere(r *http.Request, own []api.Snapshot) (list []heldElsewhere, silent []string) {
	seen := map[string]bool{}
	for _, s := range own {
		seen[s.ID] = true
	}
	for _, a := range e.Others.Ask(r.Context(), elsewhere.Call{Method: http.MethodGet, Path: "/v2/box/snapshots"}) {
		var there snapshotsView
		if err := a.Decode(&there); err != nil {
			silent = append(silent, a.Host)
		}
		for _, s := range there.Snapshots {
			if !seen[s.ID] {
				seen[s.ID] = true
				list = append(list, heldElsewhere{s, a.Host})
			}
		}
	}
	return list, silent
}

// visible returns the snapshots of a box, or of all boxes for "", that the key of the request may see.
func (e *Endpoints) visible(r *http.Request, box policy.BoxID) ([]api.Snapshot, error) {
	list, err := e.Host.Snapshots(r.Context(), box)
	caller := api.CallerOf(r.Context())
	return slices.DeleteFunc(list, func(s api.Snapshot) bool { return !caller.SeesSnapshot(s) }), err
}

// listOfBox lists the snapshots of a box, even after the box was deleted.
func (e *Endpoints) listOfBox(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	list, _, err := e.ofBox(r)
	return e.listReply(w, list, err)
}

// ofBox returns the snapshots of the box in the path, and its ID. A deleted box can only be given by its ID, and is an
// error if the key sees no snapshot of it.
func (e *Endpoints) ofBox(r *http.Request) ([]api.Snapshot, policy.BoxID, error) {
	box, err := rest.Box(r, e.Boxes)
	if err == nil && !api.CallerOf(r.Context()).Sees(box) { // its name is the ID of a deleted box
		err = api.Errorf(api.ErrNotFound, "no box has the ID or name %q", problem.Clip(r.PathValue("id")))
	}
	id := box.ID
	if err != nil {
		id = policy.BoxID(r.PathValue("id"))
	}
	list, lerr := e.visible(r, id)
	if lerr != nil {
		return nil, id, lerr
	}
	if id == "" || len(list) == 0 && err != nil {
		return nil, id, err
	}
	return list, id, nil
}

// nameStore sets [StoreHeader] if the store of several hosts does not answer.
func (e *Endpoints) nameStore(w http.ResponseWriter) {
	if shared, ok := e.Host.(Sharing); ok && shared.SnapshotStoreAway() {
		w.Header().Set(StoreHeader, "unreachable")
	}
}

func (e *Endpoints) listReply(w http.ResponseWriter, list []api.Snapshot, err error) (rest.Reply, error) {
	e.nameStore(w)
	views := make([]snapshotView, 0, len(list))
	for _, s := range list {
		views = append(views, view(s))
	}
	return rest.Reply{Body: snapshotsView{views}}, err
}

func (e *Endpoints) deleteOne(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	list, box, err := e.ofBox(r)
	if err != nil {
		return rest.Reply{}, err
	}
	snapshot := r.PathValue("snapshot")
	if !slices.ContainsFunc(list, func(s api.Snapshot) bool { return s.ID == snapshot }) {
		return rest.Reply{}, api.Errorf(api.ErrNotFound, "the box has no snapshot %q", problem.Clip(snapshot))
	}
	reply, err := e.delete(r, []string{snapshot})
	if err == nil {
		reply.Change.Box = box
	}
	return reply, err
}

func (e *Endpoints) deleteMany(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body deleteSnapshotsBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	list, err := e.visible(r, "")
	if err != nil {
		return rest.Reply{}, err
	}
	if body.IDs == nil {
		return e.deleteVisible(r, list)
	}
	ids := slices.Compact(slices.Sorted(slices.Values(*body.IDs)))
	if len(ids) == 0 || len(ids) > maxIDs {
		return rest.Reply{}, problem.Invalid("/ids", "must name 1 to %d snapshots; leave ids out to delete all of them", maxIDs)
	}
	var own, unknown []string
	for _, id := range ids {
		if slices.ContainsFunc(list, func(s api.Snapshot) bool { return s.ID == id }) {
			own = append(own, id)
		} else {
			unknown = append(unknown, id)
		}
	}
	var others map[string][]string
	if len(unknown) > 0 && elsewhere.Whole(e.Others, r) {
		if others, unknown, err = e.find(r, list, unknown); err != nil {
			return rest.Reply{}, err
		}
	}
	if len(unknown) > 0 {
		for i, id := range unknown {
			unknown[i] = strconv.Quote(problem.Clip(id))
		}
		return rest.Reply{}, api.Errorf(api.ErrNotFound, "nothing was deleted: there is no snapshot %s", strings.Join(unknown, ", "))
	}
	return e.deleteEverywhere(r, own, others)
}

// find finds snapshots on other hosts, by the ID of the host. If a host does not answer, it is not known whether it has the missing ones.
func (e *Endpoints) find(r *http.Request, own []api.Snapshot, ids []string) (others map[string][]string, unknown []string, err error) {
	others = map[string][]string{}
	list, silent := e.elsewhere(r, own)
	for _, id := range ids {
		if i := slices.IndexFunc(list, func(s heldElsewhere) bool { return s.ID == id }); i >= 0 {
			others[list[i].host] = append(others[list[i].host], id)
		} else {
			unknown = append(unknown, id)
		}
	}
	if len(unknown) > 0 && len(silent) > 0 {
		err = problem.Unreachable(strings.Join(silent, ", "), "does not answer, and may have a snapshot; nothing was deleted")
	}
	return others, unknown, err
}

// deleteVisible deletes all snapshots that the caller sees.
func (e *Endpoints) deleteVisible(r *http.Request, list []api.Snapshot) (rest.Reply, error) {
	var own []string
	for _, s := range list {
		own = append(own, s.ID)
	}
	others := map[string][]string{}
	if elsewhere.Whole(e.Others, r) {
		there, silent := e.elsewhere(r, list)
		if len(silent) > 0 {
			return rest.Reply{}, problem.Unreachable(strings.Join(silent, ", "), "does not answer; nothing was deleted")
		}
		for _, s := range there {
			others[s.host] = append(others[s.host], s.ID)
		}
	}
	return e.deleteEverywhere(r, own, others)
}

// deleteTime bounds the deletion of snapshots by other hosts.
const deleteTime = 10 * time.Minute

// deleteEverywhere lets the other hosts delete their snapshots, at most [maxIDs] in a call, and then deletes the own ones.
func (e *Endpoints) deleteEverywhere(r *http.Request, own []string, others map[string][]string) (rest.Reply, error) {
	deleted := 0
	for len(others) > 0 {
		call := elsewhere.Call{Method: http.MethodDelete, Path: "/v2/box/snapshots", Bodies: map[string][]byte{}, Time: deleteTime}
		for host, ids := range others {
			part := ids[:min(len(ids), maxIDs)]
			text, err := json.Marshal(deleteSnapshotsBody{&part})
			if err != nil {
				return rest.Reply{}, err
			}
			call.Bodies[host] = text
			if others[host] = ids[len(part):]; len(others[host]) == 0 {
				delete(others, host)
			}
		}
		var failed error
		for _, a := range e.Others.Ask(r.Context(), call) {
			var did snapshotsDeletedView
			if err := a.Decode(&did); err != nil {
				failed = err
			}
			deleted += did.Deleted
		}
		if failed != nil {
			return rest.Reply{}, api.Errorf(api.ErrUnavailable, "not all snapshots were deleted. Deleted: %d snapshots of other hosts. Not deleted: snapshots of the host that was asked. Another host failed: %v", deleted, failed)
		}
	}
	reply, err := e.delete(r, own)
	if err != nil && deleted > 0 {
		return rest.Reply{}, api.Errorf(api.ErrUnavailable, "not all snapshots were deleted. Deleted: %d snapshots of other hosts. Perhaps not deleted: snapshots of the host that was asked: %v", deleted, err)
	}
	reply.Body = snapshotsDeletedView{len(own) + deleted}
	return reply, err
}

func (e *Endpoints) delete(r *http.Request, ids []string) (rest.Reply, error) {
	if err := e.Host.DeleteSnapshots(r.Context(), ids); err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: snapshotsDeletedView{len(ids)}, Change: &rest.Change{What: map[string]any{"snapshots_deleted": ids}}}, nil
}
