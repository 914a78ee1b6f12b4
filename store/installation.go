package store

import (
	"crypto/rand"
	"encoding/hex"

	bolt "go.etcd.io/bbolt"

	"boxgate/store/layout"
)

// installation is the key of the settings that distinguish this store from the stores of other hosts.
const installation = "installation"

// HostID returns the host's part of the IDs of its boxes: six hexadecimal digits, chosen at random on first use.
func (db *DB) HostID() (id string, err error) {
	err = db.bolt.View(func(tx *bolt.Tx) error {
		id, err = db.hostID(tx)
		return err
	})
	if err != nil || id != "" {
		return id, err
	}
	err = db.bolt.Update(func(tx *bolt.Tx) error {
		if id, err = db.hostID(tx); err != nil || id != "" {
			return err
		}
		random := make([]byte, 3)
		_, _ = rand.Read(random) // never fails (crypto/rand)
		id = hex.EncodeToString(random)
		sealed, err := db.seal.SealJSON(tx, layout.Settings, installation, map[string]string{"host": id})
		if err != nil {
			return err
		}
		settings, err := db.table(tx, layout.Settings)
		if err != nil {
			return err
		}
		return settings.Put([]byte(installation), sealed)
	})
	return id, err
}

// hostID reads the host's part of IDs; "" if it has not been chosen.
func (db *DB) hostID(tx *bolt.Tx) (string, error) {
	settings, err := db.table(tx, layout.Settings)
	if err != nil {
		return "", err
	}
	sealed, err := settings.Get([]byte(installation))
	if err != nil || sealed == nil {
		return "", err
	}
	var known map[string]string
	err = db.seal.OpenJSON(tx, layout.Settings, installation, sealed, &known)
	return known["host"], err
}
