package store

import (
	"maps"
	"sync"
	"time"

	"boxgate/store/document"
)

// keyUses are the latest uses of keys that are not stored yet. The zero value is empty. Safe for concurrent use.
type keyUses struct {
	mu     sync.Mutex
	latest map[KeyHash]time.Time
}

// NoteAPIKeyUse notes that a key was used now, to the minute, without writing it: [DB.SaveAPIKeyUses] does.
func (db *DB) NoteAPIKeyUse(k APIKey) {
	now := time.Now().UTC().Truncate(time.Minute)
	if !now.After(k.LastUsed) {
		return
	}
	db.keyUses.mu.Lock()
	defer db.keyUses.mu.Unlock()
	if db.keyUses.latest == nil {
		db.keyUses.latest = map[KeyHash]time.Time{}
	}
	db.keyUses.latest[k.Hash] = now
}

// SaveAPIKeyUses stores when keys were used last, in one transaction; nothing is written if none was.
func (db *DB) SaveAPIKeyUses() error {
	db.keyUses.mu.Lock()
	uses := db.keyUses.latest
	db.keyUses.latest = nil
	db.keyUses.mu.Unlock()
	if len(uses) == 0 {
		return nil
	}
	err := db.changeKeys(func(keys document.Table) error {
		all, err := readKeys(keys)
		if err != nil {
			return err
		}
		for _, k := range all {
			at, used := uses[k.Hash]
			if !used {
				continue
			}
			k.LastUsed = at
			if err := putKey(keys, k); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		db.keyUses.mu.Lock()
		defer db.keyUses.mu.Unlock()
		maps.Copy(uses, db.keyUses.latest) // later ones
		db.keyUses.latest = uses
	}
	return err
}

// withUses adds the uses that are not stored yet.
func (db *DB) withUses(keys []APIKey) []APIKey {
	db.keyUses.mu.Lock()
	defer db.keyUses.mu.Unlock()
	for i, k := range keys {
		if at, used := db.keyUses.latest[k.Hash]; used {
			keys[i].LastUsed = at
		}
	}
	return keys
}
