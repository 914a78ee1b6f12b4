package api

import (
	"time"

	"boxgate/policy"
)

// Snapshot is a snapshot in the API.
type Snapshot struct {
	ID, Name  string
	Box       policy.BoxID
	CreatedBy string // ID of the API key that created the box; "" for the operator's
	Size      int64  // bytes on disk
	Status    string // creating, ready or error
	Error     string // why Status is error
	CreatedAt time.Time
}
