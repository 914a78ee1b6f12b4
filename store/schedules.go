package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"boxgate/policy"
	"boxgate/store/layout"
)

// Schedules has the schedules of the boxes.
type Schedules struct{ *file }

// ErrTooMany is returned when a box has the maximum number of records.
var ErrTooMany = errors.New("too many")

// Schedule is a repeated task of a box. It is sealed as a whole, because commands, prompts and headers may contain
// secrets.
type Schedule struct {
	ID             string            `json:"id"`
	Box            policy.BoxID      `json:"box"`
	Type           string            `json:"type"` // exec or prompt
	Cron           string            `json:"cron"`
	TimeZone       string            `json:"time_zone,omitempty"` // "" is UTC
	Command        []string          `json:"command,omitempty"`
	Prompt         string            `json:"prompt,omitempty"`
	Folder         string            `json:"folder,omitempty"`
	Model          string            `json:"model,omitempty"`
	AgentOptions   json.RawMessage   `json:"agent_options,omitempty"`
	Timeout        time.Duration     `json:"timeout,omitempty"` // 0: the default
	WebhookURL     string            `json:"webhook_url,omitempty"`
	WebhookHeaders map[string]string `json:"webhook_headers,omitempty"`
	Paused         bool              `json:"paused,omitempty"`
	CreatedAt      time.Time         `json:"created_at"`
	CreatedBy      string            `json:"created_by,omitempty"` // ID of the API key; "" for the operator's, and in schedules of older versions
	UpdatedAt      time.Time         `json:"updated_at"`

	// Settled is a time: every due time up to it has been handled.
	Settled time.Time `json:"settled"`
	// Claimed is the ID of the run in progress, if any.
	Claimed string `json:"claimed,omitempty"`

	LastRunAt     time.Time `json:"last_run_at,omitzero"` // zero: never
	LastRunStatus string    `json:"last_run_status,omitempty"`
	LastRunID     string    `json:"last_run_id,omitempty"`
	LastError     string    `json:"last_error,omitempty"`
	Runs          int64     `json:"runs,omitempty"`
	Failures      int64     `json:"failures,omitempty"`
}

// List returns the schedules of a box sorted by ID, or of all boxes if id is "".
func (db Schedules) List(id policy.BoxID) ([]Schedule, error) {
	var out []Schedule
	err := db.view(func(tx *transaction) error {
		schedules, err := tx.table(layout.Schedules)
		if err != nil {
			return err
		}
		return schedules.Each(urlPrefix(id), func(key, sealed []byte) error {
			var s Schedule
			err := tx.openJSON(layout.Schedules, string(key), sealed, &s)
			out = append(out, s)
			return err
		})
	})
	return out, err
}

// Add stores a new schedule. The error is [ErrTooMany] if its box has as many as allowed.
func (db Schedules) Add(s Schedule, most int) error {
	return db.update(func(tx *transaction) error {
		if err := requireBox(tx, s.Box); err != nil {
			return err
		}
		schedules, err := tx.table(layout.Schedules)
		if err != nil {
			return err
		}
		if len(schedules.Keys(urlPrefix(s.Box))) >= most {
			return fmt.Errorf("schedules of box %s: %w", s.Box, ErrTooMany)
		}
		return putSchedule(tx, s)
	})
}

// Change changes a schedule and returns it, or returns [ErrNotFound]. If change returns an error the schedule
// stays unchanged. change may be called more than once.
func (db Schedules) Change(box policy.BoxID, id string, change func(*Schedule) error) (Schedule, error) {
	var s Schedule
	// Batch, because many schedules are due at the same minute.
	err := db.batch(func(tx *transaction) (err error) {
		if s, err = getSchedule(tx, box, id); err != nil {
			return err
		}
		if err := change(&s); err != nil {
			return err
		}
		s.Box, s.ID = box, id
		return putSchedule(tx, s)
	})
	return s, err
}

// Delete removes a schedule, or returns [ErrNotFound].
func (db Schedules) Delete(box policy.BoxID, id string) error {
	return db.update(func(tx *transaction) error {
		old, err := getSchedule(tx, box, id)
		if err != nil {
			return err
		}
		tx.subtractReplaced(old.CreatedBy, Holdings{Schedules: 1}, nil)
		return tx.delete(layout.Schedules, scheduleKey(box, id))
	})
}

func deleteSchedules(tx *transaction, box policy.BoxID) error {
	schedules, err := tx.table(layout.Schedules)
	if err != nil {
		return err
	}
	for _, key := range schedules.Keys(urlPrefix(box)) {
		old, err := getSchedule(tx, box, string(key[len(urlPrefix(box)):]))
		tx.subtractReplaced(old.CreatedBy, Holdings{Schedules: 1}, err)
		if err := schedules.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

func getSchedule(tx *transaction, box policy.BoxID, id string) (s Schedule, err error) {
	found, err := tx.getSealed(layout.Schedules, string(scheduleKey(box, id)), &s)
	if err == nil && !found {
		err = fmt.Errorf("schedule %q of box %s: %w", id, box, ErrNotFound)
	}
	return s, err
}

func putSchedule(tx *transaction, s Schedule) error {
	old, err := getSchedule(tx, s.Box, s.ID)
	tx.subtractReplaced(old.CreatedBy, Holdings{Schedules: 1}, err)
	tx.adjustOnCommit(s.CreatedBy, 1, Holdings{Schedules: 1})
	return tx.putSealed(layout.Schedules, string(scheduleKey(s.Box, s.ID)), s)
}

func scheduleKey(box policy.BoxID, id string) []byte {
	return append(append([]byte(box), 0), id...)
}
