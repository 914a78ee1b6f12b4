package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"boxgate/policy/name"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// KeySecrets has the secrets that API keys have stored for header rules. They are sealed.
type KeySecrets struct{ *file }

// KeySecret is a secret of an API key. Only rules that the key has set use it.
type KeySecret struct {
	Key       string // ID of the API key
	Name      string // unique among the secrets of the key
	Value     name.Secret
	Hosts     []string          // patterns of the hosts that it may be sent to; empty: the hosts of the rules
	Metadata  map[string]string // texts of the client
	Version   uint64            // 1, and one more with each new value
	CreatedAt time.Time
	UpdatedAt time.Time
}

// ID returns how stored header rules refer to the secret.
func (s KeySecret) ID() string { return name.KeySecret(s.Key, s.Name) }

// keySecretPrefix precedes the ID of a secret in the keys of the settings.
const keySecretPrefix = "key secret "

// keySecretRecord is a secret as it is sealed.
type keySecretRecord struct {
	Value     string            `json:"value"`
	Hosts     []string          `json:"hosts,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Version   uint64            `json:"version"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`
}

// All returns the secrets of all API keys, sorted by ID.
func (db KeySecrets) All() (all []KeySecret, err error) {
	err = db.view(func(tx *transaction) error {
		settings, err := tx.table(layout.Settings)
		if err != nil {
			return err
		}
		for _, at := range settings.Keys([]byte(keySecretPrefix)) {
			s, _, err := readKeySecret(tx, strings.TrimPrefix(string(at), keySecretPrefix))
			if err != nil {
				return err
			}
			all = append(all, s)
		}
		return nil
	})
	return all, err
}

// readKeySecret reads a secret by its ID.
func readKeySecret(tx *transaction, id string) (s KeySecret, found bool, err error) {
	var stored map[string]string // like all settings
	if found, err = tx.getSealed(layout.Settings, keySecretPrefix+id, &stored); err != nil || !found {
		return s, found, err
	}
	var rec keySecretRecord
	key, n, ok := name.SplitKeySecret(id)
	if err := json.Unmarshal([]byte(stored["secret"]), &rec); err != nil || !ok {
		return s, false, errors.New("the record of a secret of an API key is damaged") // err may quote the value
	}
	return KeySecret{
		Key: key, Name: n, Value: name.NewSecret(rec.Value), Hosts: rec.Hosts, Metadata: rec.Metadata, Version: rec.Version,
		CreatedAt: rec.CreatedAt, UpdatedAt: rec.UpdatedAt,
	}, true, nil
}

// Create stores a new secret. The error is [ErrConflict] if the key has one of this name, and [ErrNotFound] if the key is not valid
// now: its secrets have been removed.
func (db KeySecrets) Create(s KeySecret) error {
	return db.update(func(tx *transaction) error {
		settings, err := tx.table(layout.Settings)
		switch {
		case err != nil:
			return err
		case settings.Has([]byte(keySecretPrefix + s.ID())):
			return fmt.Errorf("a secret of the API key: %w", ErrConflict)
		}
		tx.adjustOnCommit(s.Key, 1, Holdings{Secrets: 1})
		return putKeySecret(tx, s)
	})
}

// Replace replaces a secret of the version before. The error is [ErrNotFound] if the key has no such secret, and [ErrConflict] if it has
// another version.
func (db KeySecrets) Replace(s KeySecret, before uint64) error {
	return db.update(func(tx *transaction) error {
		old, found, err := readKeySecret(tx, s.ID())
		switch {
		case err != nil:
			return err
		case !found:
			return fmt.Errorf("a secret of the API key: %w", ErrNotFound)
		case old.Version != before:
			return fmt.Errorf("a secret of the API key: %w", ErrConflict)
		}
		return putKeySecret(tx, s)
	})
}

// putKeySecret seals a secret of a key that is valid now.
func putKeySecret(tx *transaction, s KeySecret) error {
	ends, err := endsOfKeys(tx)
	if err != nil {
		return err
	}
	if end, known := ends[s.Key]; !known || !end.IsZero() && !time.Now().Before(end) {
		return fmt.Errorf("API key: %w", ErrNotFound)
	}
	text, err := json.Marshal(keySecretRecord{s.Value.Reveal(), s.Hosts, s.Metadata, s.Version, s.CreatedAt, s.UpdatedAt})
	if err != nil {
		return err
	}
	defer clear(text)
	return tx.putSealed(layout.Settings, keySecretPrefix+s.ID(), map[string]string{"secret": string(text)})
}

// Delete deletes a secret by its ID. The error is [ErrNotFound] if it does not exist.
func (db KeySecrets) Delete(id string) error {
	return db.update(func(tx *transaction) error {
		settings, err := tx.table(layout.Settings)
		switch {
		case err != nil:
			return err
		case !settings.Has([]byte(keySecretPrefix + id)):
			return fmt.Errorf("a secret of the API key: %w", ErrNotFound)
		}
		key, _, _ := name.SplitKeySecret(id)
		tx.adjustOnCommit(key, -1, Holdings{Secrets: 1})
		return tx.delete(layout.Settings, []byte(keySecretPrefix+id))
	})
}

// DeleteEnded deletes the secrets of API keys that are not valid any more, and returns how many.
func (db KeySecrets) DeleteEnded() (n int, err error) {
	err = db.update(func(tx *transaction) error {
		n, err = deleteKeySecrets(tx, time.Now())
		return err
	})
	return n, err
}

// deleteKeySecrets deletes the secrets of API keys that are not valid at a time.
func deleteKeySecrets(tx *transaction, now time.Time) (n int, err error) {
	ends, err := endsOfKeys(tx)
	if err != nil {
		return 0, err
	}
	settings, err := tx.table(layout.Settings)
	if err != nil {
		return 0, err
	}
	for _, at := range settings.Keys([]byte(keySecretPrefix)) {
		key, _, _ := name.SplitKeySecret(strings.TrimPrefix(string(at), keySecretPrefix))
		if end, known := ends[key]; known && (end.IsZero() || now.Before(end)) {
			continue
		}
		tx.adjustOnCommit(key, -1, Holdings{Secrets: 1})
		if err := tx.delete(layout.Settings, at); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// countKeySecrets passes each secret on for the count of its key.
func countKeySecrets(tx *transaction, add func(creator string, objects Holdings)) error {
	settings, err := tx.table(layout.Settings)
	if err != nil {
		return err
	}
	for _, at := range settings.Keys([]byte(keySecretPrefix)) {
		key, _, _ := name.SplitKeySecret(strings.TrimPrefix(string(at), keySecretPrefix))
		add(key, Holdings{Secrets: 1})
	}
	return nil
}

// KeyEnds returns the time when each API key ends, by its ID, or the zero time for one that does not. A key and its predecessors within
// their grace end with the last of them. The operator's key is among them, and does not end.
func (db Keys) KeyEnds() (ends map[string]time.Time, err error) {
	err = db.view(func(tx *transaction) error {
		ends, err = endsOfKeys(tx)
		return err
	})
	return ends, err
}

func endsOfKeys(tx *transaction) (map[string]time.Time, error) {
	t, err := tx.table(layout.APIKeys)
	if err != nil {
		return nil, err
	}
	all, err := readKeys(t)
	if err != nil {
		return nil, err
	}
	ends := map[string]time.Time{}
	for _, k := range all {
		if end, known := ends[k.ID]; !known || !end.IsZero() && (k.ExpiresAt.IsZero() || end.Before(k.ExpiresAt)) {
			ends[k.ID] = k.ExpiresAt
		}
	}
	ends[OperatorKey] = time.Time{} // replaced, never revoked
	return ends, nil
}

// checkKeySecret checks the key of a setting that has a secret of an API key.
func checkKeySecret(key string, stored map[string]string) error {
	id, is := strings.CutPrefix(key, keySecretPrefix)
	if !is {
		return nil
	}
	if _, _, ok := name.SplitKeySecret(id); !ok {
		return fmt.Errorf("%q is no secret of an API key", key)
	}
	var rec keySecretRecord
	if document.Decode([]byte(stored["secret"]), &rec) != nil {
		return errors.New("it is damaged") // the error may quote the value
	}
	return nil
}
