package store

import (
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// caRecord is a stored authority: the certificate is public, the key is sealed.
type caRecord struct {
	Cert []byte `json:"cert"`
	Key  []byte `json:"key"`
}

// CA returns the authority of a box, or [ErrNotFound].
func (db *DB) CA(id policy.BoxID) (CA, error) { return db.getCA(string(id)) }

// SetCA stores the authority of a box.
func (db *DB) SetCA(id policy.BoxID, ca CA) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		if err := requireBox(tx, id); err != nil {
			return err
		}
		return db.putCA(tx, string(id), ca)
	})
}

// InstallationCA returns the authority that signs the certificates of public URLs, or [ErrNotFound].
func (db *DB) InstallationCA() (CA, error) { return db.getCA(layout.Global) }

// SetInstallationCA stores the authority that signs the certificates of public URLs.
func (db *DB) SetInstallationCA(ca CA) error {
	return db.bolt.Update(func(tx *bolt.Tx) error { return db.putCA(tx, layout.Global, ca) })
}

func (db *DB) getCA(owner string) (CA, error) {
	var rec caRecord
	var key string
	err := db.bolt.View(func(tx *bolt.Tx) error {
		cas, err := db.table(tx, layout.CAs)
		if err != nil {
			return err
		}
		data, err := cas.Get([]byte(owner))
		if err != nil {
			return err
		}
		if data == nil {
			return fmt.Errorf("certificate authority of %s: %w", owner, ErrNotFound)
		}
		if err := document.Decode(data, &rec); err != nil {
			return fmt.Errorf("the certificate authority of %s is damaged: %w", owner, err)
		}
		return db.seal.OpenJSON(tx, layout.CAs, owner, rec.Key, &key)
	})
	if err != nil {
		return CA{}, err
	}
	return CA{CertPEM: rec.Cert, KeyPEM: name.NewSecret(key)}, nil
}

func (db *DB) putCA(tx *bolt.Tx, owner string, ca CA) error {
	sealed, err := db.seal.SealJSON(tx, layout.CAs, owner, ca.KeyPEM.Reveal())
	if err != nil {
		return err
	}
	data, err := json.Marshal(caRecord{Cert: ca.CertPEM, Key: sealed})
	if err != nil {
		return err
	}
	cas, err := db.table(tx, layout.CAs)
	if err != nil {
		return err
	}
	return cas.Put([]byte(owner), data)
}
