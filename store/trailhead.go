package store

import (
	"boxgate/policy/name"
)

// trailHead is the key of the last known entry of the audit trail.
const trailHead = "audit trail"

// TrailHead returns the text last stored by [DB.SetTrailHead], initially "".
func (db *DB) TrailHead() (string, error) {
	text, err := db.getText(trailHead)
	return text.Reveal(), err
}

// SetTrailHead stores the last entry of the audit trail, so that cutting off the trail's end is detected.
func (db *DB) SetTrailHead(text string) error { return db.setText(trailHead, name.NewSecret(text)) }
