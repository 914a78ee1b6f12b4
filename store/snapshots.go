package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/layout"
)

// Snapshots has the records of snapshots, and the owners of their layers.
type Snapshots struct{ *file }

// Snapshot is the record of a box at one point in time. It is sealed as a whole, because it contains the box's
// environment.
type Snapshot struct {
	ID        string       `json:"id"`
	Name      string       `json:"name,omitempty"`
	Box       policy.BoxID `json:"box"`
	CreatedBy string       `json:"created_by,omitempty"` // ID of the API key that created the box
	State     string       `json:"state"`                // creating, ready or error
	Error     string       `json:"error,omitempty"`      // why State is error
	Size      int64        `json:"size,omitempty"`       // bytes of its layers on disk
	CreatedAt time.Time    `json:"created_at"`
	TakenBy   string       `json:"taken_by,omitempty"` // ID of the API key; "" for the operator's, and in snapshots of older versions
	Shared    string       `json:"shared,omitempty"`   // the store of several hosts that has the snapshot; "": it is only on this host
	// Layers are the layers of boxes made from this snapshot, the lowest first. Several snapshots can own a layer.
	Layers []string `json:"layers,omitempty"`

	// The state of the box.
	Image   string            `json:"image,omitempty"`
	Runtime string            `json:"runtime,omitempty"`
	BoxSize string            `json:"box_size,omitempty"`
	User    string            `json:"user,omitempty"` // as in [Box]
	Home    string            `json:"home,omitempty"`
	Policy  policy.Spec       `json:"policy"`
	Named   string            `json:"named,omitempty"` // the named policy that the box followed; may be ""
	Limits  BoxLimits         `json:"limits,omitzero"`
	Env     map[string]string `json:"env,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"` // of the fields of the hosted product
	Extra   json.RawMessage   `json:"extra,omitempty"`
}

// Of returns the snapshot with the state of a box and its policy, without header rules.
func (s Snapshot) Of(b Box, p Policy) Snapshot {
	s.Box, s.CreatedBy, s.Image, s.Runtime, s.BoxSize, s.Policy, s.Named = b.ID, b.CreatedBy, b.Image, b.Runtime, b.Size, p.Spec, p.Named
	s.User, s.Home = b.User, b.Home
	s.Limits, s.Env, s.Secrets, s.Extra = b.Limits, toPlain(b.Env), toPlain(b.Secrets), b.Extra
	return s
}

// Kept returns the environment and the other secrets of the box in the snapshot.
func (s Snapshot) Kept() (env, secrets map[string]name.Secret) {
	return toSecrets(s.Env), toSecrets(s.Secrets)
}

// Add stores a new snapshot of a box, and makes it an owner of its layers.
func (db Snapshots) Add(s Snapshot) error {
	return db.update(func(tx *transaction) error {
		if err := requireBox(tx, s.Box); err != nil {
			return err
		}
		return errors.Join(setLayerOwner(tx, snapshotOwner(s.ID), nil, s.Layers), putSnapshot(tx, s))
	})
}

// Change changes a snapshot and returns it, or returns [ErrNotFound].
func (db Snapshots) Change(id string, change func(*Snapshot)) (Snapshot, error) {
	var s Snapshot
	err := db.update(func(tx *transaction) (err error) {
		if s, err = getSnapshot(tx, id); err != nil {
			return err
		}
		before := s.Layers
		change(&s)
		s.ID = id
		return errors.Join(setLayerOwner(tx, snapshotOwner(id), before, s.Layers), putSnapshot(tx, s))
	})
	return s, err
}

// SetOwners sets the owner of snapshots of older versions to the owner of their box. Snapshots of a deleted box stay
// without an owner.
func (db Snapshots) SetOwners() error {
	list, err := db.All()
	if err != nil {
		return err
	}
	for _, s := range list {
		box, err := Boxes{db.file}.Get(s.Box)
		if s.CreatedBy != "" || err != nil || box.CreatedBy == "" {
			continue // an unreadable box is reported by its recovery
		}
		if _, err := db.Change(s.ID, func(s *Snapshot) { s.CreatedBy = box.CreatedBy }); err != nil {
			return err
		}
	}
	return nil
}

// Get returns a snapshot, or [ErrNotFound].
func (db Snapshots) Get(id string) (Snapshot, error) {
	var s Snapshot
	err := db.view(func(tx *transaction) (err error) {
		s, err = getSnapshot(tx, id)
		return err
	})
	return s, err
}

// All returns all snapshots, oldest first.
func (db Snapshots) All() ([]Snapshot, error) {
	var out []Snapshot
	err := db.view(func(tx *transaction) error {
		snapshots, err := tx.table(layout.Snapshots)
		if err != nil {
			return err
		}
		return snapshots.Each(nil, func(key, sealed []byte) error {
			var s Snapshot
			err := tx.openJSON(layout.Snapshots, string(key), sealed, &s)
			out = append(out, s)
			return err
		})
	})
	slices.SortFunc(out, func(a, b Snapshot) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return out, err
}

// Delete deletes snapshots. If one does not exist the error is [ErrNotFound], and all of them stay.
func (db Snapshots) Delete(ids []string) error {
	return db.update(func(tx *transaction) error {
		for _, id := range ids {
			s, err := getSnapshot(tx, id)
			if err != nil {
				return err
			}
			tx.subtractReplaced(s.TakenBy, Holdings{Snapshots: 1}, nil)
			if err := errors.Join(setLayerOwner(tx, snapshotOwner(id), s.Layers, nil), tx.delete(layout.Snapshots, []byte(id))); err != nil {
				return err
			}
		}
		return nil
	})
}

// NeedsLayer reports whether a snapshot or a box owns a layer.
func (db Snapshots) NeedsLayer(layer string) (needed bool, err error) {
	err = db.view(func(tx *transaction) error {
		layers, err := tx.table(layout.Layers)
		needed = err == nil && len(layers.Keys(layerKey(layer, ""))) > 0
		return err
	})
	return needed, err
}

// heldOwner owns layers of snapshots of other hosts, which a box is about to be made from.
const heldOwner = "held"

// HoldLayers keeps layers that no snapshot of this host owns, until [Snapshots.ReleaseLayers].
func (db Snapshots) HoldLayers(held []string) error {
	return db.update(func(tx *transaction) error { return setLayerOwner(tx, heldOwner, nil, held) })
}

// ReleaseLayers ends the hold of layers; of all, if held is nil.
func (db Snapshots) ReleaseLayers(held []string) error {
	if held == nil {
		err := db.view(func(tx *transaction) error {
			layers, err := tx.table(layout.Layers)
			if err != nil {
				return err
			}
			for _, key := range layers.Keys(nil) {
				if layer, owner, _ := strings.Cut(string(key), "\x00"); owner == heldOwner {
					held = append(held, layer)
				}
			}
			return nil
		})
		if err != nil || held == nil {
			return err
		}
	}
	return db.update(func(tx *transaction) error { return setLayerOwner(tx, heldOwner, held, nil) })
}

func getSnapshot(tx *transaction, id string) (s Snapshot, err error) {
	found, err := tx.getSealed(layout.Snapshots, id, &s)
	if err == nil && !found {
		err = fmt.Errorf("snapshot %q: %w", id, ErrNotFound)
	}
	return s, err
}

func putSnapshot(tx *transaction, s Snapshot) error {
	old, err := getSnapshot(tx, s.ID)
	tx.subtractReplaced(old.TakenBy, Holdings{Snapshots: 1}, err)
	tx.adjustOnCommit(s.TakenBy, 1, Holdings{Snapshots: 1})
	return tx.putSealed(layout.Snapshots, s.ID, s)
}

// Owners and keys in the bucket layers.
func snapshotOwner(id string) string      { return "snapshot " + id }
func boxOwner(id policy.BoxID) string     { return "box " + string(id) }
func layerKey(layer, owner string) []byte { return []byte(layer + "\x00" + owner) }

// setLayerOwner replaces the layers of an owner.
func setLayerOwner(tx *transaction, owner string, before, after []string) error {
	layers, err := tx.table(layout.Layers)
	if err != nil {
		return err
	}
	for _, layer := range before {
		if slices.Contains(after, layer) {
			continue
		}
		if err := layers.Delete(layerKey(layer, owner)); err != nil {
			return err
		}
	}
	for _, layer := range after {
		if err := layers.Put(layerKey(layer, owner), []byte(layer)); err != nil {
			return err
		}
	}
	return nil
}

// claimLayers makes a new box an owner of its layers. If a layer no longer has an owner, the error is [ErrNotFound]: its
// snapshot was deleted concurrently, and its files will be removed.
func claimLayers(tx *transaction, b Box) error {
	layers, err := tx.table(layout.Layers)
	if err != nil {
		return err
	}
	for _, layer := range b.Layers {
		if len(layers.Keys(layerKey(layer, ""))) == 0 {
			return fmt.Errorf("layer %q: %w", layer, ErrNotFound)
		}
	}
	return setLayerOwner(tx, boxOwner(b.ID), nil, b.Layers)
}
