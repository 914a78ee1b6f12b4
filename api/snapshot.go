package api

import (
	"time"

	"boxgate/policy"
)

// Snapshot is a snapshot as the API shows it.
type Snapshot struct {
	ID, Name  string
	Box       policy.BoxID
	Size      int64  // bytes on disk
	Status    string // creating, ready or error
	Error     string // why Status is error
	CreatedAt time.Time
}
