package store

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/store/document"
	"boxgate/store/layout"
	"boxgate/store/private"
)

// EnsureAPIKey makes the first API key, once: it writes it into the file api-key of the state directory (0600) and
// keeps its hash. It reports whether it did. The file comes first, so that a crash in between leaves a key that does
// not work, and the next start makes another. While the store has any key the file is not touched: if it was deleted,
// that was intended.
func (db *DB) EnsureAPIKey() (made bool, err error) {
	if err := db.finishKeyChange(); err != nil {
		return false, err
	}
	keys, err := db.APIKeys()
	if err != nil || len(keys) > 0 {
		return false, err
	}
	key := NewKey()
	if err := private.Write(filepath.Join(db.dir, layout.FileAPIKey), []byte(key.Reveal()+"\n")); err != nil {
		return false, fmt.Errorf("the API key cannot be written: %w", err)
	}
	return true, db.AddAPIKey("first", key)
}

// AddAPIKey keeps the hash of a key. The key must be one that [NewKey] made.
func (db *DB) AddAPIKey(name string, key policy.Secret) error {
	rec := APIKey{Name: name, Hash: HashKey(key.Reveal()), CreatedAt: time.Now().UTC()}
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return db.bolt.Update(func(tx *bolt.Tx) error {
		keys, err := db.table(tx, layout.APIKeys)
		if err != nil {
			return err
		}
		return keys.Put(rec.Hash[:], data)
	})
}

// CheckAPIKey reports whether key is an API key of this gateway. It looks up a hash, so the time that takes reveals
// nothing about existing keys. If the store cannot be read, no key is valid.
func (db *DB) CheckAPIKey(key string) bool {
	hash := HashKey(key)
	known := false
	err := db.bolt.View(func(tx *bolt.Tx) error {
		keys, err := db.table(tx, layout.APIKeys)
		if err != nil {
			return err
		}
		data, err := keys.Get(hash[:])
		if data == nil {
			return err
		}
		var k APIKey
		if err := document.Decode(data, &k); err != nil {
			return err
		}
		known = k.opens(time.Now())
		return nil
	})
	return err == nil && known
}

// APIKeys returns the records of the API keys.
func (db *DB) APIKeys() ([]APIKey, error) {
	var out []APIKey
	err := db.bolt.View(func(tx *bolt.Tx) error {
		keys, err := db.table(tx, layout.APIKeys)
		if err != nil {
			return err
		}
		out, err = readKeys(keys)
		return err
	})
	return out, err
}

func readKeys(keys document.Table) (out []APIKey, err error) {
	err = keys.Each(nil, func(_, data []byte) error {
		var k APIKey
		if err := document.Decode(data, &k); err != nil {
			return fmt.Errorf("the record of an API key is damaged: %w", err)
		}
		out = append(out, k)
		return nil
	})
	return out, err
}

// DeleteAPIKey deletes a key, which is then no longer valid. The error is [ErrNotFound] if there is no such key.
func (db *DB) DeleteAPIKey(hash KeyHash) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		keys, err := db.table(tx, layout.APIKeys)
		if err != nil {
			return err
		}
		if !keys.Has(hash[:]) {
			return fmt.Errorf("API key: %w", ErrNotFound)
		}
		return keys.Delete(hash[:])
	})
}
