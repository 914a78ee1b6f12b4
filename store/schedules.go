package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/store/layout"
)

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

	// Settled is the time up to which every due time has been handled.
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

// Schedules returns the schedules of a box sorted by ID, or of all boxes if id is "".
func (db *DB) Schedules(id policy.BoxID) ([]Schedule, error) {
	var out []Schedule
	err := db.bolt.View(func(tx *bolt.Tx) error {
		schedules, err := db.table(tx, layout.Schedules)
		if err != nil {
			return err
		}
		return schedules.Each(urlPrefix(id), func(key, sealed []byte) error {
			var s Schedule
			err := db.seal.OpenJSON(tx, layout.Schedules, string(key), sealed, &s)
			out = append(out, s)
			return err
		})
	})
	return out, err
}

// AddSchedule stores a new schedule. The error is [ErrTooMany] if its box has as many as allowed.
func (db *DB) AddSchedule(s Schedule, most int) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		if err := requireBox(tx, s.Box); err != nil {
			return err
		}
		schedules, err := db.table(tx, layout.Schedules)
		if err != nil {
			return err
		}
		if len(schedules.Keys(urlPrefix(s.Box))) >= most {
			return fmt.Errorf("schedules of box %s: %w", s.Box, ErrTooMany)
		}
		return db.putSchedule(tx, s)
	})
}

// ChangeSchedule changes a schedule and returns it, or returns [ErrNotFound]. If change returns an error the schedule
// stays unchanged. change may be called more than once.
func (db *DB) ChangeSchedule(box policy.BoxID, id string, change func(*Schedule) error) (Schedule, error) {
	var s Schedule
	// Batch, because many schedules are due at the same minute.
	err := db.bolt.Batch(func(tx *bolt.Tx) (err error) {
		if s, err = db.getSchedule(tx, box, id); err != nil {
			return err
		}
		if err := change(&s); err != nil {
			return err
		}
		s.Box, s.ID = box, id
		return db.putSchedule(tx, s)
	})
	return s, err
}

// DeleteSchedule removes a schedule, or returns [ErrNotFound].
func (db *DB) DeleteSchedule(box policy.BoxID, id string) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		old, err := db.getSchedule(tx, box, id)
		if err != nil {
			return err
		}
		db.subtractReplaced(tx, old.CreatedBy, Holdings{Schedules: 1}, nil)
		return db.deleteDocument(tx, layout.Schedules, scheduleKey(box, id))
	})
}

func (db *DB) deleteSchedules(tx *bolt.Tx, box policy.BoxID) error {
	schedules, err := db.table(tx, layout.Schedules)
	if err != nil {
		return err
	}
	for _, key := range schedules.Keys(urlPrefix(box)) {
		old, err := db.getSchedule(tx, box, string(key[len(urlPrefix(box)):]))
		db.subtractReplaced(tx, old.CreatedBy, Holdings{Schedules: 1}, err)
		if err := schedules.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

func (db *DB) getSchedule(tx *bolt.Tx, box policy.BoxID, id string) (s Schedule, err error) {
	schedules, err := db.table(tx, layout.Schedules)
	if err != nil {
		return s, err
	}
	key := scheduleKey(box, id)
	sealed, err := schedules.Get(key)
	if err != nil {
		return s, err
	}
	if sealed == nil {
		return s, fmt.Errorf("schedule %q of box %s: %w", id, box, ErrNotFound)
	}
	return s, db.seal.OpenJSON(tx, layout.Schedules, string(key), sealed, &s)
}

func (db *DB) putSchedule(tx *bolt.Tx, s Schedule) error {
	key := scheduleKey(s.Box, s.ID)
	sealed, err := db.seal.SealJSON(tx, layout.Schedules, string(key), s)
	if err != nil {
		return err
	}
	schedules, err := db.table(tx, layout.Schedules)
	if err != nil {
		return err
	}
	old, err := db.getSchedule(tx, s.Box, s.ID)
	db.subtractReplaced(tx, old.CreatedBy, Holdings{Schedules: 1}, err)
	db.adjustOnCommit(tx, s.CreatedBy, 1, Holdings{Schedules: 1})
	return schedules.Put(key, sealed)
}

func scheduleKey(box policy.BoxID, id string) []byte {
	return append(append([]byte(box), 0), id...)
}
