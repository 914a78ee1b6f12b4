package apitest

import (
	"context"
	"fmt"
	"time"

	"boxgate/api"
	"boxgate/api/schedules"
	"boxgate/policy"
)

// Schedules implements the Host of [boxgate/api/schedules].
func (h *Host) Schedules(_ context.Context, box policy.BoxID) ([]schedules.Schedule, error) {
	b, leave, err := h.box(box)
	defer leave()
	if err != nil {
		return nil, err
	}
	return b.schedules, nil
}

// AddSchedule implements the Host of [boxgate/api/schedules].
func (h *Host) AddSchedule(_ context.Context, box policy.BoxID, spec schedules.Spec) (schedules.Schedule, error) {
	b, leave, err := h.box(box)
	defer leave()
	if err != nil {
		return schedules.Schedule{}, err
	}
	now := time.Unix(1_700_000_000, 0)
	s := schedules.Schedule{Spec: spec, ID: fmt.Sprintf("sched_%d", len(b.schedules)+1), Box: box, CreatedAt: now, UpdatedAt: now, NextRunAt: now.Add(time.Minute)}
	b.schedules = append(b.schedules, s)
	return s, nil
}

// schedule changes one schedule.
func (h *Host) schedule(box policy.BoxID, id string, change func(*schedules.Schedule) error) (schedules.Schedule, error) {
	b, leave, err := h.box(box)
	defer leave()
	if err != nil {
		return schedules.Schedule{}, err
	}
	for i := range b.schedules {
		if next := b.schedules[i]; next.ID == id {
			err := change(&next)
			if err == nil {
				b.schedules[i] = next
			}
			return next, err
		}
	}
	return schedules.Schedule{}, api.Errorf(api.ErrNotFound, "the box has no such schedule")
}

// ChangeSchedule implements the Host of [boxgate/api/schedules].
func (h *Host) ChangeSchedule(_ context.Context, box policy.BoxID, id string, change func(*schedules.Spec) error) (schedules.Schedule, error) {
	return h.schedule(box, id, func(s *schedules.Schedule) error { return change(&s.Spec) })
}

// PauseSchedule implements the Host of [boxgate/api/schedules].
func (h *Host) PauseSchedule(_ context.Context, box policy.BoxID, id string, paused bool) (schedules.Schedule, error) {
	return h.schedule(box, id, func(s *schedules.Schedule) error { s.Paused = paused; return nil })
}

// DeleteSchedule implements the Host of [boxgate/api/schedules].
func (h *Host) DeleteSchedule(_ context.Context, box policy.BoxID, id string) error {
	_, err := h.schedule(box, id, func(s *schedules.Schedule) error { s.ID = ""; return nil })
	return err
}
