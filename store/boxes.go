package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
)

// sealedPart is what of a box is sealed.
type sealedPart struct {
	Env     map[string]string `json:"env,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
	Extra   json.RawMessage   `json:"extra,omitempty"`

	PlaceholderKey []byte `json:"placeholder_key,omitempty"`
}

// Box returns a box by its ID, or [ErrNotFound].
func (db *DB) Box(id policy.BoxID) (Box, error) {
	var b Box
	err := db.bolt.View(func(tx *bolt.Tx) (err error) {
		b, err = db.getBox(tx, id)
		return err
	})
	return b, err
}

// BoxByName returns the box with that name, or [ErrNotFound].
func (db *DB) BoxByName(name string) (Box, error) {
	var b Box
	err := db.bolt.View(func(tx *bolt.Tx) (err error) {
		b, err = db.getBox(tx, policy.BoxID(tx.Bucket(bucketNames).Get([]byte(name))))
		return err
	})
	return b, err
}

// Boxes returns every box, oldest first.
func (db *DB) Boxes() ([]Box, error) {
	var out []Box
	err := db.bolt.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketBoxes).ForEach(func(id, _ []byte) error {
			b, err := db.getBox(tx, policy.BoxID(id))
			out = append(out, b)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b Box) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return bytes.Compare([]byte(a.ID), []byte(b.ID))
	})
	return out, nil
}

// UpdateBox replaces what is kept of a box. Its index, addresses and time of creation stay as they are. The errors are
// [ErrNotFound] and [ErrNameTaken].
func (db *DB) UpdateBox(b Box) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		old, err := db.getBox(tx, b.ID)
		if err != nil {
			return err
		}
		b.Index, b.V4, b.V6, b.CreatedAt = old.Index, old.V4, old.V6, old.CreatedAt
		if b.Name != old.Name {
			if err := claimName(tx, b); err != nil {
				return err
			}
			if err := releaseName(tx, old); err != nil {
				return err
			}
		}
		return db.putBox(tx, b)
	})
}

// DeleteBox removes a box and everything that belongs to it in one transaction: addresses, name, secrets, policies,
// header rules, CA and public URLs. A box that does not exist is no error: deletions are repeated after a crash.
func (db *DB) DeleteBox(id policy.BoxID) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		var b Box // not getBox: a box must go even if its secrets cannot be read any more
		data := tx.Bucket(bucketBoxes).Get([]byte(id))
		if data == nil {
			return nil
		}
		if err := json.Unmarshal(data, &b); err != nil {
			return fmt.Errorf("the record of box %s is damaged: %w", id, err)
		}
		errs := []error{releaseName(tx, b), tx.Bucket(bucketIndexes).Delete(binary.BigEndian.AppendUint32(nil, b.Index))}
		for _, a := range []netip.Addr{b.V4, b.V6} {
			if a.IsValid() {
				errs = append(errs, tx.Bucket(bucketAddrs).Delete(a.AsSlice()))
			}
		}
		for _, bucket := range [][]byte{bucketBoxes, bucketSecrets, bucketPolicies, bucketStaged, bucketHeaders, bucketCAs} {
			errs = append(errs, tx.Bucket(bucket).Delete([]byte(id)))
		}
		return errors.Join(append(errs, deleteURLs(tx, id))...)
	})
}

// getBox reads a box and opens its sealed part.
func (db *DB) getBox(tx *bolt.Tx, id policy.BoxID) (Box, error) {
	data := tx.Bucket(bucketBoxes).Get([]byte(id))
	if data == nil {
		return Box{}, fmt.Errorf("box %s: %w", id, ErrNotFound)
	}
	var b Box
	if err := json.Unmarshal(data, &b); err != nil {
		return Box{}, fmt.Errorf("the record of box %s is damaged: %w", id, err)
	}
	var s sealedPart
	if err := db.seal.openJSON(tx, bucketSecrets, string(id), tx.Bucket(bucketSecrets).Get([]byte(id)), &s); err != nil {
		return Box{}, err
	}
	b.Env, b.Secrets, b.Extra = hide(s.Env), hide(s.Secrets), s.Extra
	b.PlaceholderKey = policy.NewSecret(string(s.PlaceholderKey))
	return b, nil
}

// putBox writes a box and its sealed part.
func (db *DB) putBox(tx *bolt.Tx, b Box) error {
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	sealed, err := db.seal.sealJSON(tx, bucketSecrets, string(b.ID),
		sealedPart{Env: reveal(b.Env), Secrets: reveal(b.Secrets), Extra: b.Extra, PlaceholderKey: []byte(b.PlaceholderKey.Reveal())})
	if err != nil {
		return err
	}
	if err := tx.Bucket(bucketBoxes).Put([]byte(b.ID), data); err != nil {
		return err
	}
	return tx.Bucket(bucketSecrets).Put([]byte(b.ID), sealed)
}

// claimName makes the name the box's own.
func claimName(tx *bolt.Tx, b Box) error {
	if b.Name == "" {
		return nil
	}
	names := tx.Bucket(bucketNames)
	if owner := names.Get([]byte(b.Name)); owner != nil && string(owner) != string(b.ID) {
		return fmt.Errorf("%q: %w", b.Name, ErrNameTaken)
	}
	return names.Put([]byte(b.Name), []byte(b.ID))
}

func releaseName(tx *bolt.Tx, b Box) error {
	if b.Name == "" {
		return nil
	}
	return tx.Bucket(bucketNames).Delete([]byte(b.Name))
}

// requireBox refuses records of a box that does not exist: nobody would ever delete them.
func requireBox(tx *bolt.Tx, id policy.BoxID) error {
	if tx.Bucket(bucketBoxes).Get([]byte(id)) == nil {
		return fmt.Errorf("box %s: %w", id, ErrNotFound)
	}
	return nil
}

// reveal opens secrets, to be sealed at once.
func reveal(m map[string]policy.Secret) map[string]string {
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = v.Reveal()
	}
	return out
}

func hide(m map[string]string) map[string]policy.Secret {
	if m == nil {
		return nil
	}
	out := make(map[string]policy.Secret, len(m))
	for k, v := range m {
		out[k] = policy.NewSecret(v)
	}
	return out
}
