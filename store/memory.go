package store

import (
	"boxgate/policy/name"
)

// sourceMemory starts the keys of what the sources of secrets must know after a restart.
const sourceMemory = "source "

// Remembered returns what was last kept for the source of a secret; the zero value if nothing was.
func (db *DB) Remembered(secret string) (name.Secret, error) { return db.text(sourceMemory + secret) }

// Remember keeps a text for the source of a secret, sealed, in the place of what was kept before.
func (db *DB) Remember(secret string, text name.Secret) error {
	return db.setText(sourceMemory+secret, text)
}
