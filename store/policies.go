package store

import (
	"encoding/json"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// Policy returns the committed policy of a box, or [ErrNotFound].
func (db *DB) Policy(id policy.BoxID) (Policy, error) {
	var p Policy
	err := db.bolt.View(func(tx *bolt.Tx) error {
		policies, err := db.table(tx, layout.Policies)
		if err != nil {
			return err
		}
		return getPolicy(policies, policySlot(id), &p)
	})
	return p, err
}

// StagePolicy stores a policy next to the committed one, replacing one staged before. It is not applied until
// [DB.CommitPolicy]. The version must be higher than the committed one's, else the error is [ErrConflict].
func (db *DB) StagePolicy(id policy.BoxID, next Policy) error {
	return db.bolt.Update(func(tx *bolt.Tx) error { return db.stagePolicy(tx, id, next) })
}

func (db *DB) stagePolicy(tx *bolt.Tx, id policy.BoxID, next Policy) error {
	if err := requireBox(tx, id); err != nil {
		return err
	}
	return db.stageNewer(tx, policySlot(id), next)
}

// stageNewer stages a policy whose version is higher than that of the committed one.
func (db *DB) stageNewer(tx *bolt.Tx, s slot, next Policy) error {
	data, err := json.Marshal(next)
	if err != nil {
		return err
	}
	policies, err := db.table(tx, layout.Policies)
	if err != nil {
		return err
	}
	var old Policy
	if err := getPolicy(policies, s, &old); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	} else if err == nil && next.Version <= old.Version {
		return fmt.Errorf("the %s already has version %d, which version %d cannot follow: %w", s.label, old.Version, next.Version, ErrConflict)
	}
	return db.stage(tx, s, data)
}

// CommitPolicy makes the staged policy of a box the committed one. The error is [ErrNotFound] without a staged one.
func (db *DB) CommitPolicy(id policy.BoxID) error { return db.commit(policySlot(id)) }

// AbortPolicy deletes the staged policy of a box, if there is one.
func (db *DB) AbortPolicy(id policy.BoxID) error { return db.abort(policySlot(id)) }

func getPolicy(policies document.Table, s slot, p *Policy) error {
	data, err := policies.Get([]byte(s.owner))
	if err != nil {
		return err
	}
	if data == nil {
		return fmt.Errorf("%s: %w", s.label, ErrNotFound)
	}
	return decodePolicy(data, s, p)
}

func decodePolicy(data []byte, s slot, p *Policy) error {
	if err := document.Decode(data, p); err != nil {
		return fmt.Errorf("the %s is damaged: %w", s.label, err)
	}
	return nil
}
