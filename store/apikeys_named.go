package store

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"boxgate/policy/name"
	"boxgate/store/document"
)

// maxAPIKeys bounds the number of API keys.
const maxAPIKeys = 1000

// CreateAPIKey makes a key with the name, role, box, expiry and quotas of like, and returns it with its record. The key
// itself is not stored. The error is [ErrKeyNameTaken] if another key has the name, and [ErrManyKeys] if there are too
// many keys.
func (db *DB) CreateAPIKey(like APIKey) (name.Secret, APIKey, error) {
	key, now := NewKey(), time.Now().UTC()
	fresh := APIKey{
		ID: newKeyID(), Name: like.Name, Role: like.Role, Box: like.Box, ExpiresAt: like.ExpiresAt, Quotas: like.Quotas,
		Hash: HashKey(key.Reveal()), CreatedAt: now,
	}
	err := db.changeKeys(func(keys document.Table) error {
		all, err := readKeys(keys)
		switch {
		case err != nil:
			return err
		case fresh.Name == OperatorKey || slices.ContainsFunc(all, func(k APIKey) bool { return k.Name == fresh.Name }):
			return ErrKeyNameTaken
		case len(all) >= maxAPIKeys:
			return ErrManyKeys
		}
		return putKey(keys, fresh)
	})
	if err != nil {
		return name.Secret{}, APIKey{}, err
	}
	return key, fresh, nil
}

// newKeyID returns a unique ID, which is never reused.
func newKeyID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return "key_" + hex.EncodeToString(b[:])
}

// ReplaceAPIKey gives the key of that ID a new value, and returns it. The old one stops working immediately, or after
// grace if that is more than 0; name, role, box, expiry and quotas stay. The error is [ErrNotFound] if the key does not
// exist or has expired.
func (db *DB) ReplaceAPIKey(id string, grace time.Duration) (name.Secret, APIKey, error) {
	key, now := NewKey(), time.Now().UTC()
	var fresh APIKey
	err := db.changeKeys(func(keys document.Table) error {
		all, err := readKeys(keys)
		if err != nil {
			return err
		}
		for _, k := range all {
			if k.ID == id && k.validAt(now) && !k.CreatedAt.Before(fresh.CreatedAt) {
				fresh = k
			}
		}
		if fresh.ID == "" || id == OperatorKey { // RotateAPIKey replaces the operator's, which also has a file
			return fmt.Errorf("API key: %w", ErrNotFound)
		}
		fresh.Hash, fresh.CreatedAt, fresh.LastUsed = HashKey(key.Reveal()), now, time.Time{}
		return replaceKeys(keys, fresh, now.Add(grace))
	})
	if err != nil {
		return name.Secret{}, APIKey{}, err
	}
	return key, fresh, nil
}

// SetAPIKeyQuotas sets or removes the quotas of the key of that ID, and returns its latest record. The error is
// [ErrNotFound] if the key does not exist.
func (db *DB) SetAPIKeyQuotas(id string, quotas map[string]int64) (latest APIKey, err error) {
	err = db.changeKeys(func(keys document.Table) error {
		all, err := readKeys(keys)
		if err != nil {
			return err
		}
		for _, k := range all {
			if k.ID != id {
				continue
			}
			k.Quotas = quotas
			if err := putKey(keys, k); err != nil {
				return err
			}
			if latest.ID == "" || latest.CreatedAt.Before(k.CreatedAt) {
				latest = k
			}
		}
		if latest.ID == "" {
			return fmt.Errorf("API key: %w", ErrNotFound)
		}
		return nil
	})
	return latest, err
}

// DeleteAPIKey deletes the key of that ID, which stops working immediately, including values within their grace. The
// error is [ErrNotFound] if the key does not exist. The operator's key cannot be deleted, only replaced.
func (db *DB) DeleteAPIKey(id string) error {
	if id == OperatorKey {
		return fmt.Errorf("the operator's API key: %w", ErrNotFound)
	}
	return db.deleteKeys(func(k APIKey) bool { return k.ID == id })
}

func (db *DB) deleteKeys(which func(APIKey) bool) error {
	return db.changeKeys(func(keys document.Table) error {
		all, err := readKeys(keys)
		if err != nil {
			return err
		}
		found := slices.DeleteFunc(all, func(k APIKey) bool { return !which(k) })
		if len(found) == 0 {
			return fmt.Errorf("API key: %w", ErrNotFound)
		}
		for _, k := range found {
			if err := keys.Delete(k.Hash[:]); err != nil {
				return err
			}
		}
		return nil
	})
}
