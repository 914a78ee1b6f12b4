package host

import (
	"context"
	"time"

	"boxgate/policy"
)

// SetInitCommand implements [boxgate/api/lifecycle.Host]. It is run at the next start.
func (u *usage) SetInitCommand(_ context.Context, id policy.BoxID, command string) error {
	b, err := u.boxes.lock(id)
	if err != nil {
		return err
	}
	defer b.mu.Unlock()
	switch {
	case b.attached != nil:
		return errAttached
	case !b.record.KeepAlive && command != "":
		return invalidAt("/init_command", "needs a box that was created with keep_alive: true")
	}
	record := b.record
	record.InitCommand, record.UpdatedAt = command, time.Now()
	if err := u.store.UpdateBox(record); err != nil {
		return notStored(u.log, "the init command could not be stored, nothing was changed", err)
	}
	b.record = record
	b.publish()
	return nil
}
