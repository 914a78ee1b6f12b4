package store

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// NamedPolicies returns the committed named policies.
func (db *DB) NamedPolicies() (map[string]Policy, error) {
	out := map[string]Policy{}
	err := db.bolt.View(func(tx *bolt.Tx) error {
		policies, err := db.table(tx, layout.Policies)
		if err != nil {
			return err
		}
		return policies.Each([]byte(layout.Named), func(key, data []byte) error {
			name, p := strings.TrimPrefix(string(key), layout.Named), Policy{}
			err := decodePolicy(data, namedSlot(name), &p)
			out[name] = p
			return err
		})
	})
	return out, err
}

// StageNamed stores a named policy and the policies of the boxes that follow it, in one transaction, next to the
// committed ones. They are not applied until [DB.CommitNamed]. Each version must be higher than the committed one's,
// else the error is [ErrConflict].
func (db *DB) StageNamed(name string, next Policy, boxes map[policy.BoxID]Policy) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		for id, p := range boxes {
			if err := db.stagePolicy(tx, id, p); err != nil {
				return err
			}
		}
		return db.stageNewer(tx, namedSlot(name), next)
	})
}

// CommitNamed makes a staged named policy and the staged policies of those boxes the committed ones, in one
// transaction. If any of them is not staged the error is [ErrNotFound], and all policies stay.
func (db *DB) CommitNamed(name string, boxes []policy.BoxID) error {
	return db.commit(namedSlots(name, boxes)...)
}

// AbortNamed deletes the policies that [DB.StageNamed] has stored and [DB.CommitNamed] has not committed.
func (db *DB) AbortNamed(name string, boxes []policy.BoxID) error {
	return db.abort(namedSlots(name, boxes)...)
}

func namedSlots(name string, boxes []policy.BoxID) []slot {
	slots := []slot{namedSlot(name)}
	for _, id := range boxes {
		slots = append(slots, policySlot(id))
	}
	return slots
}

// DeleteNamed deletes a named policy. The error is [ErrConflict] if a box follows it, and [ErrNotFound] if it does not
// exist.
func (db *DB) DeleteNamed(name string) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		policies, err := db.table(tx, layout.Policies)
		if err != nil {
			return err
		}
		s, p := namedSlot(name), Policy{}
		if err := getPolicy(policies, s, &p); err != nil {
			return err
		}
		err = policies.Each(nil, func(key, data []byte) error {
			var of Policy
			if err := document.Decode(data, &of); err != nil {
				return fmt.Errorf("the policy at %q is damaged: %w", key, err)
			}
			if of.Named == name {
				return fmt.Errorf("%s is in use by box %s: %w", s.label, key, ErrConflict)
			}
			return nil
		})
		if err != nil {
			return err
		}
		return policies.Delete([]byte(s.owner))
	})
}

// policyFollowers finds policies of boxes that differ from the named policy that they follow.
type policyFollowers struct {
	named map[string]Policy
	boxes map[string]Policy // by key; only boxes that follow a named policy
}

func (f *policyFollowers) read(key string, p Policy) error {
	if name, ok := strings.CutPrefix(key, layout.Named); ok {
		f.named[name] = p
	} else if p.Named != "" {
		f.boxes[key] = p
	}
	return checkPolicy(key, p)
}

// problems describes the differences.
func (f *policyFollowers) problems() (list []string) {
	for key, p := range f.boxes {
		if named, ok := f.named[p.Named]; !ok {
			list = append(list, fmt.Sprintf("policies, %q: it follows the named policy %q, which does not exist", key, p.Named))
		} else if !reflect.DeepEqual(p.Spec, named.Spec) {
			list = append(list, fmt.Sprintf("policies, %q: it differs from the named policy %q", key, p.Named))
		}
	}
	slices.Sort(list)
	return list
}
