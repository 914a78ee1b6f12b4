package store

import (
	"fmt"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/store/layout"
)

// Headers returns the header rules of a box. If they were never set they are empty, with version 0.
func (db *DB) Headers(id policy.BoxID) (Headers, error) { return db.getHeaders(string(id)) }

// GlobalHeaders returns the header rules of every box. If they were never set they are empty, with version 0.
func (db *DB) GlobalHeaders() (Headers, error) { return db.getHeaders(layout.Global) }

// StageHeaders stores header rules of a box next to the committed ones, replacing rules staged before. They are not in
// force until [DB.CommitHeaders]. The version must be higher than the committed one, else the error is [ErrConflict].
func (db *DB) StageHeaders(id policy.BoxID, rules []policy.HeaderRule, version uint64) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		if err := requireBox(tx, id); err != nil {
			return err
		}
		return db.stageHeaders(tx, string(id), rules, version)
	})
}

// CommitHeaders makes the staged header rules of a box the committed ones. Without staged ones the error is [ErrNotFound].
func (db *DB) CommitHeaders(id policy.BoxID) error { return db.commit(headerSlot(string(id))) }

// AbortHeaders deletes the staged header rules of a box, if there are any.
func (db *DB) AbortHeaders(id policy.BoxID) error { return db.abort(headerSlot(string(id))) }

// StageGlobalHeaders is [DB.StageHeaders] for the header rules of every box.
func (db *DB) StageGlobalHeaders(rules []policy.HeaderRule, version uint64) error {
	return db.bolt.Update(func(tx *bolt.Tx) error { return db.stageHeaders(tx, layout.Global, rules, version) })
}

// CommitGlobalHeaders is [DB.CommitHeaders] for the header rules of every box.
func (db *DB) CommitGlobalHeaders() error { return db.commit(headerSlot(layout.Global)) }

// AbortGlobalHeaders is [DB.AbortHeaders] for the header rules of every box.
func (db *DB) AbortGlobalHeaders() error { return db.abort(headerSlot(layout.Global)) }

func (db *DB) getHeaders(owner string) (Headers, error) {
	var rec headersRecord
	err := db.bolt.View(func(tx *bolt.Tx) (err error) {
		rec, err = db.headersRecord(tx, owner)
		return err
	})
	if err != nil {
		return Headers{}, err
	}
	return rec.headers()
}

func (db *DB) headersRecord(tx *bolt.Tx, owner string) (headersRecord, error) {
	var rec headersRecord
	headers, err := db.table(tx, layout.Headers)
	if err != nil {
		return rec, err
	}
	sealed, err := headers.Get([]byte(owner))
	if sealed == nil {
		return rec, err
	}
	return rec, db.seal.OpenJSON(tx, layout.Headers, owner, sealed, &rec)
}

// stageHeaders seals header rules for the place where they are staged.
func (db *DB) stageHeaders(tx *bolt.Tx, owner string, rules []policy.HeaderRule, version uint64) error {
	old, err := db.headersRecord(tx, owner)
	if err != nil {
		return err
	}
	if version <= old.Version {
		return fmt.Errorf("the header rules have version %d already, %d cannot follow: %w", old.Version, version, ErrConflict)
	}
	rec, err := newHeadersRecord(rules, version)
	if err != nil {
		return err
	}
	slot := headerSlot(owner)
	sealed, err := db.seal.SealJSON(tx, layout.Staged, slot.staged, rec)
	if err != nil {
		return err
	}
	return db.stage(tx, slot, sealed)
}
