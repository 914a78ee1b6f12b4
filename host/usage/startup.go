package usage

import (
	"context"
	"time"

	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/policy"
)

// SetInitCommand implements [boxgate/api/lifecycle.Host]. The command runs at the box's next start.
func (u *Service) SetInitCommand(_ context.Context, id policy.BoxID, command string) error {
	b, err := u.boxes.Lock(id)
	if err != nil {
		return err
	}
	defer b.Unlock()
	switch {
	case b.Attached != nil:
		return state.ErrAttached
	case !b.Record.KeepAlive && command != "":
		return change.InvalidAt("/init_command", "needs a box that was created with keep_alive: true")
	}
	record := b.Record
	record.InitCommand, record.UpdatedAt = command, time.Now()
	if err := u.records.Update(record); err != nil {
		return change.NotStored(u.log, "the init command could not be stored, nothing was changed", err)
	}
	b.Record = record
	b.Publish()
	return nil
}
