package store

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"boxgate/store/layout"
)

// keyTable has the records of API keys, by their hashes.
type keyTable interface {
	Put(key, document []byte) error
	Delete(key []byte) error
	Each(prefix []byte, f func(key, document []byte) error) error
}

// KeyEditor changes the API keys of one place: the store, or with [FleetKeys] a fleet. Safe for concurrent use if its place
// is.
type KeyEditor struct {
	change func(func(keyTable) error) error
	fleet  bool
}

// newKeys returns the API keys of a file.
func newKeys(f *file) Keys {
	db := Keys{file: f}
	db.KeyEditor = KeyEditor{change: db.change}
	return db
}

// fleetRole precedes the role in the stored record of a key of the fleet.
const fleetRole = "fleet "

// FleetKeys returns an editor of records by ID, as [Keys.SetFleet] takes them. change calls its argument with the present ones, and makes the
// result the present ones.
func FleetKeys(change func(edit func(records map[string][]byte) error) error) KeyEditor {
	return KeyEditor{fleet: true, change: func(edit func(keyTable) error) error {
		return change(func(records map[string][]byte) error { return edit(keyRecords(records)) })
	}}
}

// keyRecords are records by the hexadecimal digits of their hashes.
type keyRecords map[string][]byte

func (r keyRecords) Put(key, document []byte) error {
	r[hex.EncodeToString(key)] = bytes.Clone(document)
	return nil
}

func (r keyRecords) Delete(key []byte) error {
	delete(r, hex.EncodeToString(key))
	return nil
}

// Each implements [keyTable], in the order of the keys. Records that no host would use are left out: they must not prevent that a key is revoked.
func (r keyRecords) Each(_ []byte, f func(key, document []byte) error) error {
	for _, id := range slices.Sorted(maps.Keys(r)) {
		k, err := readFleetKey(id, r[id])
		if err != nil {
			continue
		}
		if err := f(k.Hash[:], r[id]); err != nil {
			return err
		}
	}
	return nil
}

// errFleetKey is the error of a record that no host has written.
var errFleetKey = errors.New("the record of an API key of the fleet is not usable")

// readFleetKey reads a record with its ID, as [Keys.SetFleet] takes it.
func readFleetKey(id string, record []byte) (APIKey, error) {
	k, err := readKey(record)
	if err != nil {
		return APIKey{}, fmt.Errorf("%w: %w", errFleetKey, err)
	}
	if !k.Fleet || !strings.HasPrefix(k.ID, keyIDPrefix) || hex.EncodeToString(k.Hash[:]) != id {
		return APIKey{}, errFleetKey
	}
	return k, nil
}

// SetFleet makes records the API keys of the fleet, in one transaction, and returns the IDs of keys that were changed or are gone. Limits of the
// latter stay and their secrets are deleted, as with [Keys.Delete]. Records that cannot be used are left out: unusable has their number. Records with the ID or hash of
// a key of this host are among them.
func (db Keys) SetFleet(records map[string][]byte) (changed []string, unusable int, err error) {
	err = db.update(func(tx *transaction) error {
		keys, err := tx.table(layout.APIKeys)
		if err != nil {
			return err
		}
		all, err := readKeys(keys)
		if err != nil {
			return err
		}
		old, own := map[KeyHash]APIKey{}, map[string]bool{}
		for _, k := range all {
			if k.Fleet {
				old[k.Hash] = k
			} else {
				own[k.ID], own[hex.EncodeToString(k.Hash[:])] = true, true
			}
		}
		var next map[KeyHash]APIKey
		next, unusable = usableKeys(records, own)
		var gone []APIKey
		if changed, gone, err = replaceFleet(keys, old, next); err != nil || len(changed) == 0 {
			return err
		}
		now := time.Now().UTC()
		if _, err := deleteKeySecrets(tx, now); err != nil {
			return err
		}
		return keepLimits(tx, gone, now)
	})
	return changed, unusable, err
}

// usableKeys reads the records that are usable. own has the IDs and hashes of this host's keys.
func usableKeys(records map[string][]byte, own map[string]bool) (keys map[KeyHash]APIKey, unusable int) {
	keys = map[KeyHash]APIKey{}
	for id, record := range records {
		k, err := readFleetKey(id, record)
		if err != nil || own[k.ID] || own[id] {
			unusable++
			continue
		}
		keys[k.Hash] = k
	}
	return keys, unusable
}

// replaceFleet replaces the records of the fleet's keys. Uses by this host stay. gone are the records of the IDs without one.
func replaceFleet(keys keyTable, old, next map[KeyHash]APIKey) (changed []string, gone []APIKey, err error) {
	ids, left := map[string]bool{}, map[string]bool{}
	for hash, k := range next {
		before, known := old[hash]
		left[k.ID], k.LastUsed = true, before.LastUsed
		if known && equalKeys(before, k) {
			continue
		}
		ids[k.ID] = true
		err = errors.Join(err, putKey(keys, k))
	}
	for hash, k := range old {
		if _, ok := next[hash]; ok {
			continue
		}
		ids[k.ID] = true
		if !left[k.ID] {
			gone = append(gone, k)
		}
		err = errors.Join(err, keys.Delete(hash[:]))
	}
	return slices.Sorted(maps.Keys(ids)), gone, err
}

// equalKeys reports whether two records are stored alike.
func equalKeys(a, b APIKey) bool {
	one, two := keyRecords{}, keyRecords{}
	return putKey(one, a) == nil && putKey(two, b) == nil && maps.EqualFunc(one, two, bytes.Equal)
}
