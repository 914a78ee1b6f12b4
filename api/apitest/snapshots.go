package apitest

import (
	"context"
	"fmt"
	"slices"

	"boxgate/api"
	"boxgate/policy"
)

// TakeSnapshot implements the Host of [boxgate/api/snapshots].
func (h *Host) TakeSnapshot(_ context.Context, id policy.BoxID, name string) (api.Snapshot, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Snapshot{}, err
	}
	s := api.Snapshot{ID: fmt.Sprint("snap_", len(h.Taken)), Name: name, Box: b.ID, CreatedBy: b.CreatedBy, Status: "ready", Size: 4096}
	h.Taken = append(h.Taken, s)
	return s, nil
}

// Snapshots implements the Host of [boxgate/api/boxes].
func (h *Host) Snapshots(_ context.Context, box policy.BoxID) ([]api.Snapshot, error) {
	leave, err := h.beginCall()
	defer leave()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(h.Taken), func(s api.Snapshot) bool { return box != "" && s.Box != box }), nil
}

// DeleteSnapshots implements the Host of [boxgate/api/snapshots].
func (h *Host) DeleteSnapshots(_ context.Context, ids []string) error {
	leave, err := h.beginCall()
	defer leave()
	h.Taken = slices.DeleteFunc(h.Taken, func(s api.Snapshot) bool { return slices.Contains(ids, s.ID) })
	return err
}
