package host

import (
	"time"

	"boxgate/api"
	"boxgate/store"
)

// states stores the states of boxes.
type states struct{ store *store.DB }

// setState stores the state of a box and takes it over. The caller holds b.mu.
func (l states) setState(b *box, s api.Status, problem string) error {
	if b.deleting && s != api.StatusDeleted {
		return api.ErrNotFound // the state of a box that goes is final
	}
	record := b.record
	record.State, record.Error, record.UpdatedAt = string(s), problem, time.Now()
	if err := l.store.UpdateBox(record); err != nil {
		return err
	}
	b.record, b.status, b.problem = record, s, problem
	b.publish()
	return nil
}
