package store

import (
	bolt "go.etcd.io/bbolt"

	"boxgate/policy/name"
	"boxgate/store/layout"
)

// environment is the key of the variables for new boxes.
const environment = "environment"

// Environment returns the variables that new boxes get.
func (db *DB) Environment() (map[string]name.Secret, error) {
	var vars map[string]string
	err := db.bolt.View(func(tx *bolt.Tx) (err error) {
		vars, err = db.environment(tx)
		return err
	})
	return toSecrets(vars), err
}

// ChangeEnvironment changes the variables that new boxes get. If change returns an error, they stay unchanged.
func (db *DB) ChangeEnvironment(change func(vars map[string]name.Secret) error) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		plain, err := db.environment(tx)
		if err != nil {
			return err
		}
		vars := toSecrets(plain)
		if err := change(vars); err != nil {
			return err
		}
		sealed, err := db.seal.SealJSON(tx, layout.Settings, environment, toPlain(vars))
		if err != nil {
			return err
		}
		settings, err := db.table(tx, layout.Settings)
		if err != nil {
			return err
		}
		return settings.Put([]byte(environment), sealed)
	})
}

// environment reads the variables; the map is never nil.
func (db *DB) environment(tx *bolt.Tx) (map[string]string, error) {
	vars := map[string]string{}
	settings, err := db.table(tx, layout.Settings)
	if err != nil {
		return nil, err
	}
	sealed, err := settings.Get([]byte(environment))
	if err != nil || sealed == nil {
		return vars, err
	}
	return vars, db.seal.OpenJSON(tx, layout.Settings, environment, sealed, &vars)
}
