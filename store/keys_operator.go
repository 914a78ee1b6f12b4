package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"boxgate/store/document"
	"boxgate/store/layout"
	"boxgate/store/private"
)

// Ensure makes the first API key, once: it writes the key into the file api-key of the state directory (0600) and
// stores its hash. It reports whether it did. The file comes first, so that a crash in between leaves a key that does
// not work, and the next start makes another. While the store has any key the file is not touched: if it was deleted,
// that was intended.
func (db Keys) Ensure() (made bool, err error) {
	if err := db.finishKeyChange(); err != nil {
		return false, err
	}
	keys, err := db.All()
	if err != nil || len(keys) > 0 {
		return false, err
	}
	key := NewKey()
	if err := private.Write(filepath.Join(db.dir, layout.FileAPIKey), []byte(key.Reveal()+"\n")); err != nil {
		return false, fmt.Errorf("the API key cannot be written: %w", err)
	}
	return true, db.Add("first", key)
}

// Rotate makes a new operator's key and writes it into the file api-key of the state directory. The previous one
// stops working immediately, or after grace if that is more than 0. Named keys stay.
//
// The new key is written to a file next to api-key before the store has it, and renamed to api-key afterwards. If the
// gateway dies in between, one of the two keys works, and the next start completes the change if the store has the new
// key ([Keys.Ensure]).
func (db Keys) Rotate(grace time.Duration) error {
	db.rotating.Lock()
	defer db.rotating.Unlock()
	key := NewKey()
	if err := private.Write(db.path(layout.FileNextKey), []byte(key.Reveal()+"\n")); err != nil {
		return fmt.Errorf("the new API key cannot be written: %w", err)
	}
	if err := db.reportStep("new API key in a file beside"); err != nil {
		return err
	}
	now := time.Now().UTC()
	fresh := APIKey{ID: OperatorKey, Name: "rotated", Hash: HashKey(key.Reveal()), CreatedAt: now}
	if err := db.change(func(keys document.Table) error { return replaceKeys(keys, fresh, now.Add(grace)) }); err != nil {
		return errors.Join(err, os.Remove(db.path(layout.FileNextKey)))
	}
	if err := db.reportStep("new API key in force"); err != nil {
		return err
	}
	if err := db.finishKeyChange(); err != nil {
		return fmt.Errorf("the new API key is valid, but still in the file %s, until the next start: %w", layout.FileNextKey, err)
	}
	return db.reportStep("new API key in its file")
}

// replaceKeys adds a key and makes earlier keys with its ID expire at a given time. Earlier expiries stay, and expired
// keys are deleted.
func replaceKeys(keys document.Table, fresh APIKey, end time.Time) error {
	old, err := readKeys(keys)
	if err != nil {
		return err
	}
	for _, k := range old {
		if k.ID != fresh.ID {
			continue
		}
		if k.ExpiresAt.IsZero() || end.Before(k.ExpiresAt) {
			k.ExpiresAt = end
		}
		if !k.validAt(fresh.CreatedAt) {
			err = errors.Join(err, keys.Delete(k.Hash[:]))
			continue
		}
		err = errors.Join(err, putKey(keys, k))
	}
	return errors.Join(err, putKey(keys, fresh))
}

// finishKeyChange completes a change of the API key: the file with the new one is renamed if the store has the key,
// else removed.
func (db Keys) finishKeyChange() error {
	next := db.path(layout.FileNextKey)
	data, err := os.ReadFile(next)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer clear(data)
	if !db.Check(strings.TrimSpace(string(data))) {
		return os.Remove(next)
	}
	return errors.Join(os.Rename(next, db.path(layout.FileAPIKey)), private.SyncDir(db.dir))
}
