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
	"boxgate/policy/name"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// sealedBoxFields is the sealed part of a box.
type sealedBoxFields struct {
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
		names, err := db.table(tx, layout.Names)
		if err != nil {
			return err
		}
		id, err := names.Get([]byte(name))
		if err != nil {
			return err
		}
		b, err = db.getBox(tx, policy.BoxID(id))
		return err
	})
	return b, err
}

// Boxes returns every box, oldest first.
func (db *DB) Boxes() ([]Box, error) {
	var out []Box
	err := db.bolt.View(func(tx *bolt.Tx) error {
		boxes, err := db.table(tx, layout.Boxes)
		if err != nil {
			return err
		}
		for _, id := range boxes.Keys(nil) {
			b, err := db.getBox(tx, policy.BoxID(id))
			if err != nil {
				return err
			}
			out = append(out, b)
		}
		return nil
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

// UpdateBox replaces the record of a box, except for its index, addresses, layers and creation time. The errors are
// [ErrNotFound] and [ErrNameTaken].
func (db *DB) UpdateBox(b Box) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		old, err := db.getBox(tx, b.ID)
		if err != nil {
			return err
		}
		b.Index, b.V4, b.V6, b.CreatedAt, b.Layers = old.Index, old.V4, old.V6, old.CreatedAt, old.Layers
		if b.Name != old.Name {
			if err := db.claimName(tx, b); err != nil {
				return err
			}
			if err := db.releaseName(tx, old); err != nil {
				return err
			}
		}
		return db.putBox(tx, b)
	})
}

// DeleteBox removes a box and everything that belongs to it in one transaction: addresses, name, secrets, policies,
// header rules, CA, public URLs and schedules. A missing box is not an error, because deletions are repeated after a
// crash.
func (db *DB) DeleteBox(id policy.BoxID) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		b, err := db.boxRecord(tx, id) // not getBox: the secrets are not needed
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		errs := []error{db.deleteURLs(tx, id), db.releaseName(tx, b), db.setLayerOwner(tx, boxOwner(id), b.Layers, nil), db.deleteDocument(tx, layout.Indexes, binary.BigEndian.AppendUint32(nil, b.Index))}
		for _, a := range []netip.Addr{b.V4, b.V6} {
			if a.IsValid() {
				errs = append(errs, db.deleteDocument(tx, layout.Addrs, a.AsSlice()))
			}
		}
		for _, bucket := range [][]byte{layout.Boxes, layout.Secrets, layout.Policies, layout.Headers, layout.CAs, layout.Usage} {
			errs = append(errs, db.deleteDocument(tx, bucket, []byte(id)))
		}
		for _, s := range []slot{policySlot(id), headerSlot(string(id))} {
			errs = append(errs, db.deleteDocument(tx, layout.Staged, []byte(s.staged)))
		}
		return errors.Join(append(errs, db.deleteSchedules(tx, id))...)
	})
}

// deleteDocument deletes one document.
func (db *DB) deleteDocument(tx *bolt.Tx, bucket, key []byte) error {
	t, err := db.table(tx, bucket)
	if err != nil {
		return err
	}
	return t.Delete(key)
}

// boxRecord reads a box without its sealed part.
func (db *DB) boxRecord(tx *bolt.Tx, id policy.BoxID) (b Box, err error) {
	boxes, err := db.table(tx, layout.Boxes)
	if err != nil {
		return b, err
	}
	data, err := boxes.Get([]byte(id))
	if err != nil {
		return b, err
	}
	if data == nil {
		return b, fmt.Errorf("box %s: %w", id, ErrNotFound)
	}
	if err := document.Decode(data, &b); err != nil {
		return b, fmt.Errorf("the record of box %s is damaged: %w", id, err)
	}
	return b, nil
}

// getBox reads a box and opens its sealed part.
func (db *DB) getBox(tx *bolt.Tx, id policy.BoxID) (Box, error) {
	b, err := db.boxRecord(tx, id)
	if err != nil {
		return Box{}, err
	}
	secrets, err := db.table(tx, layout.Secrets)
	if err != nil {
		return Box{}, err
	}
	sealed, err := secrets.Get([]byte(id))
	if err != nil {
		return Box{}, err
	}
	var s sealedBoxFields
	if err := db.seal.OpenJSON(tx, layout.Secrets, string(id), sealed, &s); err != nil {
		return Box{}, err
	}
	b.Env, b.Secrets, b.Extra = toSecrets(s.Env), toSecrets(s.Secrets), s.Extra
	b.PlaceholderKey = name.NewSecret(string(s.PlaceholderKey))
	return b, nil
}

// putBox writes a box and its sealed part.
func (db *DB) putBox(tx *bolt.Tx, b Box) error {
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	sealed, err := db.seal.SealJSON(tx, layout.Secrets, string(b.ID),
		sealedBoxFields{Env: toPlain(b.Env), Secrets: toPlain(b.Secrets), Extra: b.Extra, PlaceholderKey: []byte(b.PlaceholderKey.Reveal())})
	if err != nil {
		return err
	}
	boxes, err := db.table(tx, layout.Boxes)
	if err != nil {
		return err
	}
	if err := boxes.Put([]byte(b.ID), data); err != nil {
		return err
	}
	secrets, err := db.table(tx, layout.Secrets)
	if err != nil {
		return err
	}
	return secrets.Put([]byte(b.ID), sealed)
}

// claimName reserves the name for the box.
func (db *DB) claimName(tx *bolt.Tx, b Box) error {
	if b.Name == "" {
		return nil
	}
	names, err := db.table(tx, layout.Names)
	if err != nil {
		return err
	}
	owner, err := names.Get([]byte(b.Name))
	if err != nil {
		return err
	}
	if owner != nil && string(owner) != string(b.ID) {
		return fmt.Errorf("%q: %w", b.Name, ErrNameTaken)
	}
	return names.Put([]byte(b.Name), []byte(b.ID))
}

func (db *DB) releaseName(tx *bolt.Tx, b Box) error {
	if b.Name == "" {
		return nil
	}
	return db.deleteDocument(tx, layout.Names, []byte(b.Name))
}

// requireBox refuses records of a box that does not exist, because they would never be deleted.
func requireBox(tx *bolt.Tx, id policy.BoxID) error {
	if tx.Bucket(layout.Boxes).Get([]byte(id)) == nil {
		return fmt.Errorf("box %s: %w", id, ErrNotFound)
	}
	return nil
}

// toPlain returns secrets in plain text, to be sealed immediately.
func toPlain(m map[string]name.Secret) map[string]string {
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = v.Reveal()
	}
	return out
}

func toSecrets(m map[string]string) map[string]name.Secret {
	if m == nil {
		return nil
	}
	out := make(map[string]name.Secret, len(m))
	for k, v := range m {
		out[k] = name.NewSecret(v)
	}
	return out
}
