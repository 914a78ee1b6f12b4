package store

import (
	"bytes"
	"fmt"
	"strings"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/store/layout"
)

// A policy or a set of header rules is changed in two transactions. The first stages it: it is on disk but not applied.
// The second commits it: it replaces the previous one and is no longer staged. The gateway enforces it between the two,
// so after a crash the committed one is valid, and the staged one is dropped.

// stage writes a document, replacing one that was staged before.
func (db *DB) stage(tx *bolt.Tx, s slot, document []byte) error {
	staged, err := db.table(tx, layout.Staged)
	if err != nil {
		return err
	}
	return staged.Put([]byte(s.staged), document)
}

// commit makes the staged documents the committed ones, all of them atomically.
func (db *DB) commit(slots ...slot) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		for _, s := range slots {
			if err := db.commitIn(tx, s); err != nil {
				return err
			}
		}
		return nil
	})
}

func (db *DB) commitIn(tx *bolt.Tx, s slot) error {
	staged, err := db.table(tx, layout.Staged)
	if err != nil {
		return err
	}
	committed, err := db.table(tx, s.bucket)
	if err != nil {
		return err
	}
	document, err := staged.Get([]byte(s.staged))
	if err != nil {
		return err
	}
	if document == nil {
		return fmt.Errorf("staged %s: %w", s.label, ErrNotFound)
	}
	if document, err = db.committedForm(tx, s, document); err != nil {
		return err
	}
	if err := committed.Put([]byte(s.owner), document); err != nil {
		return err
	}
	return staged.Delete([]byte(s.staged))
}

// committedForm returns a copy of a staged document in its committed form.
func (db *DB) committedForm(tx *bolt.Tx, s slot, document []byte) ([]byte, error) {
	if !s.sealed {
		return bytes.Clone(document), nil
	}
	key, err := db.seal.Key(tx)
	if err != nil {
		return nil, err
	}
	plain, err := key.Open(layout.Staged, s.staged, document)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	return key.Seal(s.bucket, s.owner, plain), nil
}

// abort deletes the staged documents. Without any it does not write, so that it succeeds on a full disk.
func (db *DB) abort(slots ...slot) error {
	staged := false
	err := db.bolt.View(func(tx *bolt.Tx) error {
		for _, s := range slots {
			staged = staged || tx.Bucket(layout.Staged).Get([]byte(s.staged)) != nil
		}
		return nil
	})
	if err != nil || !staged {
		return err
	}
	return db.bolt.Update(func(tx *bolt.Tx) error {
		for _, s := range slots {
			if err := db.deleteDocument(tx, layout.Staged, []byte(s.staged)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Staged returns the policies that were staged and neither committed nor aborted: after a crash, those of interrupted
// updates.
func (db *DB) Staged() (map[policy.BoxID]Policy, error) {
	out := map[policy.BoxID]Policy{}
	err := db.eachStaged(func(_ *bolt.Tx, c StagedChange, _ string, document []byte) error {
		if c.Headers || c.Named != "" {
			return nil
		}
		var p Policy
		err := decodePolicy(document, policySlot(c.Box), &p)
		out[c.Box] = p
		return err
	})
	return out, err
}

// StagedHeaders returns the header rules that were staged and neither committed nor aborted, by box; "" stands for the
// global ones.
func (db *DB) StagedHeaders() (map[policy.BoxID]Headers, error) {
	out := map[policy.BoxID]Headers{}
	err := db.eachStaged(func(tx *bolt.Tx, c StagedChange, key string, document []byte) error {
		if !c.Headers {
			return nil
		}
		var rec headersRecord
		if err := db.seal.OpenJSON(tx, layout.Staged, key, document, &rec); err != nil {
			return err
		}
		headers, err := rec.headers()
		out[c.Box] = headers
		return err
	})
	return out, err
}

func (db *DB) eachStaged(f func(tx *bolt.Tx, c StagedChange, key string, document []byte) error) error {
	return db.bolt.View(func(tx *bolt.Tx) error {
		staged, err := db.table(tx, layout.Staged)
		if err != nil {
			return err
		}
		return staged.Each(nil, func(key, document []byte) error { return f(tx, changeAt(string(key)), string(key), document) })
	})
}

// StagedChange identifies the target of a staged document.
type StagedChange struct {
	Box     policy.BoxID // "": all boxes, or the followers of Named
	Named   string       // the named policy; may be ""
	Headers bool         // a change of header rules, else of the policy
}

// changeAt returns the change that is staged under a key.
func changeAt(key string) StagedChange {
	owner, headers := strings.CutPrefix(key, stagedHeaders)
	if owner == layout.Global {
		owner = ""
	}
	if name, named := strings.CutPrefix(owner, layout.Named); named && !headers {
		return StagedChange{Named: name}
	}
	return StagedChange{Box: policy.BoxID(owner), Headers: headers}
}

// DropStaged deletes everything that is staged and returns the dropped changes. Call it once after [Open], before the
// first change, to roll back changes that a crash interrupted.
func (db *DB) DropStaged() ([]StagedChange, error) {
	var dropped []StagedChange
	err := db.bolt.Update(func(tx *bolt.Tx) error {
		staged, err := db.table(tx, layout.Staged)
		if err != nil {
			return err
		}
		for _, key := range staged.Keys(nil) {
			if err := staged.Delete(key); err != nil {
				return err
			}
			dropped = append(dropped, changeAt(string(key)))
		}
		return nil
	})
	return dropped, err
}
