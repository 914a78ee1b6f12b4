package schedules

import (
	"context"
	"encoding/json"
	"time"

	"boxgate/policy"
)

// The types of schedules.
const (
	TypeExec   = "exec"   // a command
	TypePrompt = "prompt" // a prompt for an agent
)

// Spec is the definition of a schedule.
type Spec struct {
	Type           string // TypeExec or TypePrompt; immutable
	Cron, TimeZone string
	Command        []string // for TypeExec
	Prompt         string   // for TypePrompt
	Folder         string   // absolute
	Model          string
	AgentOptions   json.RawMessage // an object, or nil
	Timeout        time.Duration   // 0: the host's default
	WebhookURL     string          // may be empty
	WebhookHeaders map[string]string
}

// Schedule is a schedule with its history. Times that do not apply are zero.
type Schedule struct {
	Spec
	ID                   string
	Box                  policy.BoxID
	Paused               bool
	CreatedAt, UpdatedAt time.Time
	NextRunAt, LastRunAt time.Time
	LastRunStatus        string
	LastRunID            string
	LastError            string
	Runs, Failures       int64
}

// Host stores and runs the schedules. Errors are as in package api; an invalid expression or URL is a
// *document.InvalidError.
type Host interface {
	// Schedules lists the schedules of a box, oldest first.
	Schedules(ctx context.Context, box policy.BoxID) ([]Schedule, error)
	// AddSchedule adds a schedule. Beyond the limit it returns an ErrLimit. For an attached box, which cannot run
	// commands, it returns an ErrConflict.
	AddSchedule(ctx context.Context, box policy.BoxID, s Spec) (Schedule, error)
	// ChangeSchedule changes a schedule. If change returns an error, the schedule stays as it was.
	ChangeSchedule(ctx context.Context, box policy.BoxID, id string, change func(*Spec) error) (Schedule, error)
	// PauseSchedule pauses or resumes a schedule. Runs that were due during the pause are skipped.
	PauseSchedule(ctx context.Context, box policy.BoxID, id string, paused bool) (Schedule, error)
	// DeleteSchedule deletes a schedule. A run in progress continues.
	DeleteSchedule(ctx context.Context, box policy.BoxID, id string) error
}
