package schedule

import (
	"time"

	"boxgate/policy"
	"boxgate/store"
)

// Add stores and starts a new schedule. It returns the errors of [store.Schedules.Add].
func (d *Scheduler) Add(s store.Schedule) (store.Schedule, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.Now().Round(0)
	s.CreatedAt, s.UpdatedAt, s.Settled = now, now, now
	if err := d.Store.Add(s, Most); err != nil {
		return store.Schedule{}, err
	}
	d.updateLocked(s)
	return s, nil
}

// Change changes a schedule. Due times that have passed count as settled. It returns the errors of
// [store.Schedules.Change].
func (d *Scheduler) Change(box policy.BoxID, id string, change func(*store.Schedule) error) (store.Schedule, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.Store.Change(box, id, func(s *store.Schedule) error {
		if err := change(s); err != nil {
			return err
		}
		now := d.Now().Round(0)
		s.UpdatedAt, s.Settled = now, now
		return nil
	})
	if err != nil {
		return store.Schedule{}, err
	}
	d.updateLocked(s)
	return s, nil
}

// Delete removes a schedule. An active run continues. It returns the errors of [store.Schedules.Delete].
func (d *Scheduler) Delete(box policy.BoxID, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Store.Delete(box, id); err != nil {
		return err
	}
	delete(d.entries, key{box, id})
	return nil
}

// Forget drops the schedules of a box that was deleted from the store.
func (d *Scheduler) Forget(box policy.BoxID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for at := range d.entries {
		if at.box == box {
			delete(d.entries, at)
		}
	}
}

// Next returns a schedule's next due time, zero if it is paused.
func Next(s store.Schedule) time.Time {
	rule, err := Parse(s.Cron, s.TimeZone)
	if err != nil || s.Paused {
		return time.Time{}
	}
	return rule.Next(s.Settled)
}
