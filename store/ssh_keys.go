package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"boxgate/policy/name"
)

// SSHKey is a public key that logs in to boxes over SSH with the permissions of an API key.
type SSHKey struct {
	Key     []byte    `json:"key"` // in the wire format of RFC 4253, section 6.6
	Name    string    `json:"name,omitempty"`
	AddedAt time.Time `json:"added_at"`
}

// ID identifies a public key. It is derived from its SHA-256.
func (k SSHKey) ID() string {
	sum := sha256.Sum256(k.Key)
	return "ssh_" + hex.EncodeToString(sum[:8])
}

// The errors of public keys.
var (
	ErrSSHKeyTaken = errors.New("the public key is in use by an API key")
	ErrManySSHKeys = errors.New("the API key has too many public keys")
)

// MaxSSHKeys is the maximum number of public keys of an API key.
const MaxSSHKeys = 16

// AddSSHKey adds a public key to the API key of that ID, and returns its latest record. The error is [ErrNotFound] if there is no such
// key, [ErrSSHKeyTaken] if any API key has the public key, and [ErrManySSHKeys] if this one has too many. The operator's key cannot have
// public keys, because older versions read its record.
func (e KeyEditor) AddSSHKey(id string, add SSHKey) (latest APIKey, err error) {
	return e.changeSSHKeys(id, func(all []APIKey, own []SSHKey) ([]SSHKey, error) {
		for _, k := range all {
			if slices.ContainsFunc(k.SSHKeys, func(other SSHKey) bool { return bytes.Equal(other.Key, add.Key) }) {
				return nil, ErrSSHKeyTaken
			}
		}
		if len(own) >= MaxSSHKeys {
			return nil, ErrManySSHKeys
		}
		return append(slices.Clone(own), add), nil
	})
}

// RemoveSSHKey removes a public key, by its ID, from the API key of that ID, and returns the latest record. The error is [ErrNotFound] if
// there is no such key.
func (e KeyEditor) RemoveSSHKey(id, sshKey string) (latest APIKey, err error) {
	return e.changeSSHKeys(id, func(_ []APIKey, own []SSHKey) ([]SSHKey, error) {
		left := slices.DeleteFunc(slices.Clone(own), func(k SSHKey) bool { return k.ID() == sshKey })
		if len(left) == len(own) {
			return nil, fmt.Errorf("public key: %w", ErrNotFound)
		}
		return left, nil
	})
}

// changeSSHKeys changes the public keys of all records of an API key, which have the same ones.
func (e KeyEditor) changeSSHKeys(id string, change func(all []APIKey, own []SSHKey) ([]SSHKey, error)) (latest APIKey, err error) {
	err = e.change(func(keys keyTable) error {
		latest = APIKey{} // of an earlier attempt
		all, err := readKeys(keys)
		if err != nil {
			return err
		}
		for _, k := range all {
			if k.ID == id && id != OperatorKey && (latest.ID == "" || latest.CreatedAt.Before(k.CreatedAt)) {
				latest = k
			}
		}
		if latest.ID == "" {
			return fmt.Errorf("API key: %w", ErrNotFound)
		}
		changed, err := change(all, latest.SSHKeys)
		if err != nil {
			return err
		}
		latest.SSHKeys = changed
		for _, k := range all {
			if k.ID != id {
				continue
			}
			k.SSHKeys = changed
			if err := putKey(keys, k); err != nil {
				return err
			}
		}
		return nil
	})
	return latest, err
}

// sshHostKey is the key of the private key that the gateway presents to clients of SSH.
const sshHostKey = "ssh host key"

// SSHHostKey returns the private key that the gateway presents to clients of SSH, initially the zero value.
func (db Installation) SSHHostKey() (name.Secret, error) { return db.getText(sshHostKey) }

// SetSSHHostKeyOnce stores the private key that the gateway presents to clients of SSH, sealed, unless there is one.
func (db Installation) SetSSHHostKeyOnce(key name.Secret) error {
	return db.setTextOnce(sshHostKey, key)
}
