package store

import (
	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/store/layout"
)

// sourceMemory starts the keys of what the sources of secrets must know after a restart.
const sourceMemory = "source "

// Remembered returns what was last kept for the source of a secret; the zero value if nothing was.
func (db *DB) Remembered(secret string) (policy.Secret, error) {
	known := map[string]string{}
	err := db.bolt.View(func(tx *bolt.Tx) error {
		settings, err := db.table(tx, layout.Settings)
		if err != nil {
			return err
		}
		key := sourceMemory + secret
		sealed, err := settings.Get([]byte(key))
		if err != nil || sealed == nil {
			return err
		}
		return db.seal.OpenJSON(tx, layout.Settings, key, sealed, &known)
	})
	if err != nil || known["text"] == "" {
		return policy.Secret{}, err
	}
	return policy.NewSecret(known["text"]), nil
}

// Remember keeps a text for the source of a secret, sealed, in the place of what was kept before.
func (db *DB) Remember(secret string, text policy.Secret) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		key := sourceMemory + secret
		sealed, err := db.seal.SealJSON(tx, layout.Settings, key, map[string]string{"text": text.Reveal()})
		if err != nil {
			return err
		}
		settings, err := db.table(tx, layout.Settings)
		if err != nil {
			return err
		}
		return settings.Put([]byte(key), sealed)
	})
}
