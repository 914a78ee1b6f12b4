package store

import (
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
)

// Policy returns the committed policy of a box, or [ErrNotFound].
func (db *DB) Policy(id policy.BoxID) (Policy, error) {
	var p Policy
	err := db.bolt.View(func(tx *bolt.Tx) error {
		return getPolicy(tx.Bucket(bucketPolicies), id, &p)
	})
	return p, err
}

// StagePolicy keeps a policy beside the committed one, in the place of one staged before. It is in force for nobody
// until [DB.CommitPolicy]. The version must be higher than the committed one's, else the error is [ErrConflict].
func (db *DB) StagePolicy(id policy.BoxID, spec policy.Spec, version uint64) error {
	data, err := json.Marshal(Policy{Spec: spec, Version: version})
	if err != nil {
		return err
	}
	return db.bolt.Update(func(tx *bolt.Tx) error {
		if err := requireBox(tx, id); err != nil {
			return err
		}
		if have := tx.Bucket(bucketPolicies).Get([]byte(id)); have != nil {
			var old Policy
			if err := json.Unmarshal(have, &old); err != nil {
				return fmt.Errorf("the policy of box %s is damaged: %w", id, err)
			}
			if version <= old.Version {
				return fmt.Errorf("box %s has policy version %d already, %d cannot follow: %w", id, old.Version, version, ErrConflict)
			}
		}
		return tx.Bucket(bucketStaged).Put([]byte(id), data)
	})
}

// CommitPolicy makes the staged policy of a box the committed one. Without a staged one the error is [ErrNotFound].
func (db *DB) CommitPolicy(id policy.BoxID) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		staged := tx.Bucket(bucketStaged)
		data := staged.Get([]byte(id))
		if data == nil {
			return fmt.Errorf("staged policy of box %s: %w", id, ErrNotFound)
		}
		if err := tx.Bucket(bucketPolicies).Put([]byte(id), data); err != nil {
			return err
		}
		return staged.Delete([]byte(id))
	})
}

// AbortPolicy forgets the staged policy of a box, if there is one.
func (db *DB) AbortPolicy(id policy.BoxID) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketStaged).Delete([]byte(id))
	})
}

// Staged returns the policies that were staged and neither committed nor aborted: after a crash, those whose update was
// under way.
func (db *DB) Staged() (map[policy.BoxID]Policy, error) {
	out := map[policy.BoxID]Policy{}
	err := db.bolt.View(func(tx *bolt.Tx) error {
		staged := tx.Bucket(bucketStaged)
		return staged.ForEach(func(id, _ []byte) error {
			var p Policy
			err := getPolicy(staged, policy.BoxID(id), &p)
			out[policy.BoxID(id)] = p
			return err
		})
	})
	return out, err
}

// DropStaged forgets every staged policy. Called once after [Open], before the first update, it makes of an update that a
// crash cut short one that never began; it returns the boxes concerned.
func (db *DB) DropStaged() ([]policy.BoxID, error) {
	var dropped []policy.BoxID
	err := db.bolt.Update(func(tx *bolt.Tx) error {
		err := tx.Bucket(bucketStaged).ForEach(func(id, _ []byte) error {
			dropped = append(dropped, policy.BoxID(id))
			return nil
		})
		for _, id := range dropped {
			if err == nil {
				err = tx.Bucket(bucketStaged).Delete([]byte(id))
			}
		}
		return err
	})
	return dropped, err
}

func getPolicy(bucket *bolt.Bucket, id policy.BoxID, p *Policy) error {
	data := bucket.Get([]byte(id))
	if data == nil {
		return fmt.Errorf("policy of box %s: %w", id, ErrNotFound)
	}
	if err := json.Unmarshal(data, p); err != nil {
		return fmt.Errorf("the policy of box %s is damaged: %w", id, err)
	}
	return nil
}
