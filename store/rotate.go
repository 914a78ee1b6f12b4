package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"filippo.io/age"
	bolt "go.etcd.io/bbolt"

	"boxgate/policy/name"
	"boxgate/store/document"
	"boxgate/store/keyring"
	"boxgate/store/layout"
)

// RotateKey gives the store a new data key, reseals every value with it, and encrypts it to a new key: a new age
// identity in the key file, or the new passphrase. A passphrase must be given if, and only if, the store has one. The
// store can be used during the call.
//
// The values change in one transaction. During that the key file has both the old and the new identity, so the store
// can be opened whenever the gateway dies; the next start removes the unused identity. Data encrypted with the old key
// remains in free pages of the file until the next start, which rewrites the file.
func (db *DB) RotateKey(newPassphrase name.Secret) error {
	db.rotating.Lock()
	defer db.rotating.Unlock()
	sealing, err := db.sealing()
	if err != nil {
		return err
	}
	switch {
	case sealing == layout.SealedByPassphrase && newPassphrase.Reveal() == "":
		return fmt.Errorf("%w: the secrets of this store are encrypted with a passphrase: give a new one", ErrPassphrase)
	case sealing == layout.SealedByFile && newPassphrase.Reveal() != "":
		return fmt.Errorf("%w: the secrets of this store are encrypted with its key file: give no passphrase", ErrPassphrase)
	case sealing == layout.SealedByPassphrase:
		return db.rotatePassphrase(newPassphrase.Reveal())
	}
	return db.rotateKeyFile()
}

// sealing returns how the data key is encrypted.
func (db *DB) sealing() (sealing string, err error) {
	err = db.bolt.View(func(tx *bolt.Tx) error {
		sealing = string(tx.Bucket(layout.Meta).Get(layout.Sealing))
		return nil
	})
	return sealing, err
}

func (db *DB) rotatePassphrase(passphrase string) error {
	k, err := keyring.OfPassphrase(passphrase, "")
	if err != nil {
		return err
	}
	if err := db.resealAll(k); err != nil {
		return err
	}
	return db.reportStep("new data key committed")
}

func (db *DB) rotateKeyFile() error {
	path := db.path(layout.FileSecret)
	old, err := db.currentIdentity(path)
	if err != nil {
		return err
	}
	next, err := age.GenerateX25519Identity()
	if err != nil {
		return err
	}
	if err := keyring.WriteFile(path, old, next); err != nil {
		return err
	}
	if err := db.reportStep("both identities in the key file"); err != nil {
		return err
	}
	// On failure both identities stay in the key file, because the transaction may or may not have been written to
	// disk.
	if err := db.resealAll(keyring.OfFile(path, []*age.X25519Identity{next})); err != nil {
		return err
	}
	if err := db.reportStep("new data key committed"); err != nil {
		return err
	}
	if err := keyring.WriteFile(path, next); err != nil {
		return fmt.Errorf("the secrets are encrypted with a new key, but the old one stays in the key file until the next start: %w", err)
	}
	return db.reportStep("new identity alone in the key file")
}

// currentIdentity returns the identity of the key file that opens the current data key.
func (db *DB) currentIdentity(path string) (*age.X25519Identity, error) {
	file, err := keyring.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var wrapped []byte
	err = db.bolt.View(func(tx *bolt.Tx) error {
		wrapped = bytes.Clone(tx.Bucket(layout.Meta).Get(layout.DataKey))
		return nil
	})
	if err != nil {
		return nil, err
	}
	key, which, err := keyring.OfFile(path, file.Identities).Unwrap(wrapped)
	clear(key)
	if err != nil {
		return nil, err
	}
	return file.Identities[which], nil
}

// resealAll makes a data key, encrypted by k, and reseals every value with it, in one transaction.
func (db *DB) resealAll(k keyring.Keyring) error {
	wrapped, err := db.seal.NewKey(k.Wrap)
	if err != nil {
		return err
	}
	return db.bolt.Update(func(tx *bolt.Tx) error {
		if err := db.seal.Check(tx); err != nil {
			return fmt.Errorf("the store is damaged: %w", err)
		}
		old, err := db.seal.Key(tx)
		if err != nil {
			return err
		}
		if err := errors.Join(document.PutKey(tx, wrapped, k.Sealing), tx.Bucket(layout.Meta).Put(layout.Compact, []byte{1})); err != nil {
			return err
		}
		next, err := db.seal.Key(tx)
		if err != nil {
			return err
		}
		if err := document.Rewrite(tx, next, func(bucket, key, value []byte) ([]byte, error) {
			return resealed(old, next, bucket, key, document.StripTag(value))
		}); err != nil {
			return err
		}
		return db.reportStep("values sealed anew")
	})
}

// resealed returns a document with its sealed part resealed.
func resealed(old, next *document.Key, bucket, owner, document []byte) ([]byte, error) {
	again := func(value []byte) ([]byte, error) {
		plain, err := old.Open(bucket, string(owner), value)
		if err != nil {
			return nil, err
		}
		defer clear(plain)
		return next.Seal(bucket, string(owner), plain), nil
	}
	switch {
	case bytes.Equal(bucket, layout.Secrets), bytes.Equal(bucket, layout.Headers),
		bytes.Equal(bucket, layout.Settings), bytes.Equal(bucket, layout.Schedules), bytes.Equal(bucket, layout.Snapshots),
		bytes.Equal(bucket, layout.Staged) && bytes.HasPrefix(owner, []byte(stagedHeaders)):
		return again(document)
	case bytes.Equal(bucket, layout.CAs):
		return resealCA(document, again)
	case bytes.Equal(bucket, layout.URLs):
		return resealURL(document, again)
	}
	return document, nil
}

// resealCA reseals the key of an authority; its certificate is not sealed.
func resealCA(data []byte, again func([]byte) ([]byte, error)) ([]byte, error) {
	var rec caRecord
	if err := document.Decode(data, &rec); err != nil {
		return nil, fmt.Errorf("the record of a certificate authority is damaged: %w", err)
	}
	var err error
	if rec.Key, err = again(rec.Key); err != nil {
		return nil, err
	}
	return json.Marshal(rec)
}

// resealURL reseals the key of a public URL; the rest of its record is not sealed.
func resealURL(data []byte, again func([]byte) ([]byte, error)) ([]byte, error) {
	var rec urlRecord
	if err := document.Decode(data, &rec); err != nil {
		return nil, fmt.Errorf("the record of a public URL is damaged: %w", err)
	}
	if rec.Sealed == nil {
		return data, nil
	}
	var err error
	if rec.Sealed, err = again(rec.Sealed); err != nil {
		return nil, err
	}
	return json.Marshal(rec)
}
