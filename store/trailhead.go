package store

import (
	"boxgate/policy/name"
)

// trailHead is the key of the last known entry of the audit trail.
const trailHead = "audit trail"

// TrailHead returns what [DB.SetTrailHead] kept last; empty if nothing.
func (db *DB) TrailHead() (string, error) {
	text, err := db.text(trailHead)
	return text.Reveal(), err
}

// SetTrailHead keeps which entry of the audit trail is the last, so that its end cannot be cut off unseen.
func (db *DB) SetTrailHead(text string) error { return db.setText(trailHead, name.NewSecret(text)) }
