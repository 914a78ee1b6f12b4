package boxes

import (
	"net/http"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
)

// fromSnapshotBody is the JSON of a create request with a snapshot.
type fromSnapshotBody struct {
	SnapshotID string `json:"snapshot_id" example:"snap_0123456789abcdef"`
	createBody
}

// request validates the body. Fields that are in the snapshot and not in the request stay empty.
func (b *fromSnapshotBody) request(hasSecret func(string) bool) (api.CreateRequest, error) {
	var p problem.List
	if b.SnapshotID == "" || len(b.SnapshotID) > 64 {
		p.Add("/snapshot_id", "must be the ID of a snapshot")
	}
	req, err := b.createBody.request(hasSecret)
	if err := p.Merge("", err); err != nil {
		return api.CreateRequest{}, err
	}
	req.Snapshot = b.SnapshotID
	req.Size = b.Size
	return req, p.Err()
}

// createFromSnapshot handles POST /v2/box/from-snapshot.
func (e *Endpoints) createFromSnapshot(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.create(w, r, &fromSnapshotBody{})
}
