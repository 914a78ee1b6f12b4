package store

import (
	"boxgate/policy/name"
)

// sourceMemory is the prefix of the keys for the state of secret sources.
const sourceMemory = "source "

// Remembered returns the text last stored for the source of a secret, initially the zero value.
func (db *DB) Remembered(secret string) (name.Secret, error) {
	return db.getText(sourceMemory + secret)
}

// Remember replaces the text stored for the source of a secret. It is sealed.
func (db *DB) Remember(secret string, text name.Secret) error {
	return db.setText(sourceMemory+secret, text)
}
