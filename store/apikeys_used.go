package store

import (
	"time"

	"boxgate/store/document"
)

// NoteAPIKeyUse records in memory that a key was used now, to the minute. [DB.SaveAPIKeyUses] stores it.
func (db *DB) NoteAPIKeyUse(k APIKey) {
	if now := time.Now().UTC().Truncate(time.Minute); now.After(k.LastUsed) {
		db.keyUses.add(k.Hash, now)
	}
}

// SaveAPIKeyUses stores the latest uses of keys in one transaction. Without uses it does not write.
func (db *DB) SaveAPIKeyUses() error {
	uses := db.keyUses.takeAll()
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
		db.keyUses.restore(uses)
	}
	return err
}
