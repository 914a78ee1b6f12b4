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

// Spec is a schedule as written.
type Spec struct {
	Type           string // TypeExec or TypePrompt; does not change
	Cron, TimeZone string
	Command        []string // of TypeExec
	Prompt         string   // of TypePrompt
	Folder         string   // absolute
	Model          string
	AgentOptions   json.RawMessage // an object, or nil
	Timeout        time.Duration   // 0: the host's default
	WebhookURL     string          // "" for none
	WebhookHeaders map[string]string
}

// Schedule is a schedule and what became of it. Times are zero if there are none.
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

// Host keeps and runs the schedules. Errors are as in package api; an expression or a URL that cannot be used is a
// *document.InvalidError.
type Host interface {
	// Schedules lists the schedules of a box, oldest first.
	Schedules(ctx context.Context, box policy.BoxID) ([]Schedule, error)
	// AddSchedule makes a schedule. One too many is an ErrLimit; for an attached box, in which nothing can be run, it is an
	// ErrConflict.
	AddSchedule(ctx context.Context, box policy.BoxID, s Spec) (Schedule, error)
	// ChangeSchedule changes a schedule. If change returns an error nothing changes.
	ChangeSchedule(ctx context.Context, box policy.BoxID, id string, change func(*Spec) error) (Schedule, error)
	// PauseSchedule stops a schedule from running, or lets it run again. What was due meanwhile is not run.
	PauseSchedule(ctx context.Context, box policy.BoxID, id string, paused bool) (Schedule, error)
	// DeleteSchedule removes a schedule. A run that is under way goes on.
	DeleteSchedule(ctx context.Context, box policy.BoxID, id string) error
}
