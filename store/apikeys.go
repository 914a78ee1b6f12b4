package store

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy/name"
	"boxgate/store/document"
	"boxgate/store/layout"
	"boxgate/store/private"
)

// EnsureAPIKey makes the first API key, once: it writes the key into the file api-key of the state directory (0600) and
// stores its hash. It reports whether it did. The file comes first, so that a crash in between leaves a key that does
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

// AddAPIKey stores the hash of an operator's key. The key must be made by [NewKey].
func (db *DB) AddAPIKey(name string, key name.Secret) error {
	return db.changeKeys(func(keys document.Table) error {
		return putKey(keys, APIKey{ID: OperatorKey, Name: name, Hash: HashKey(key.Reveal()), CreatedAt: time.Now().UTC()})
	})
}

// changeKeys changes the records of the keys in one transaction.
func (db *DB) changeKeys(change func(document.Table) error) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		keys, err := db.table(tx, layout.APIKeys)
		if err != nil {
			return err
		}
		return change(keys)
	})
}

// CheckAPIKey reports whether key is a valid API key, like [DB.FindAPIKey].
func (db *DB) CheckAPIKey(key string) bool {
	_, ok := db.FindAPIKey(key)
	return ok
}

// FindAPIKey returns the record of a currently valid key. It looks up a hash, so its duration reveals no information
// about existing keys. If the store cannot be read, no key is valid.
func (db *DB) FindAPIKey(key string) (APIKey, bool) {
	hash := HashKey(key)
	var found APIKey
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
		if found, err = readKey(data); err != nil {
			return err
		}
		known = found.Hash == hash && found.validAt(time.Now())
		return nil
	})
	if err != nil || !known {
		return APIKey{}, false
	}
	return found, true
}

// APIKeys returns the records of the API keys, with their latest uses.
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
	for i, k := range out {
		if at, used := db.keyUses.of(k.Hash); used {
			out[i].LastUsed = at
		}
	}
	return out, err
}

func readKeys(keys document.Table) (out []APIKey, err error) {
	err = keys.Each(nil, func(_, data []byte) error {
		k, err := readKey(data)
		out = append(out, k)
		return err
	})
	return out, err
}

func readKey(data []byte) (APIKey, error) {
	var k APIKey
	if err := document.Decode(data, &k); err != nil {
		return APIKey{}, fmt.Errorf("the record of an API key is damaged: %w", err)
	}
	if k.isOperators() {
		k.ID, k.Name, k.Role = OperatorKey, OperatorKey, RoleAdmin
	}
	return k, nil
}

// putKey stores the record of a key.
func putKey(keys document.Table, k APIKey) error {
	if k.ID == OperatorKey {
		k.ID, k.Role = "", ""
	}
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return keys.Put(k.Hash[:], data)
}
