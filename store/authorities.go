package store

import (
	"encoding/json"
	"fmt"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// Authorities has the certificate authorities of the boxes and of the installation.
type Authorities struct{ *file }

// CA is a certificate authority: one of a box, or the installation's own.
type CA struct {
	CertPEM []byte
	KeyPEM  name.Secret
}

// caRecord is a stored authority: the certificate is public, the key is sealed.
type caRecord struct {
	Cert []byte `json:"cert"`
	Key  []byte `json:"key"`
}

// CA returns the authority of a box, or [ErrNotFound].
func (db Authorities) CA(id policy.BoxID) (CA, error) { return db.getCA(string(id)) }

// SetCA stores the authority of a box.
func (db Authorities) SetCA(id policy.BoxID, ca CA) error {
	return db.update(func(tx *transaction) error {
		if err := requireBox(tx, id); err != nil {
			return err
		}
		return putCA(tx, string(id), ca)
	})
}

// InstallationCA returns the authority that signs the certificates of public URLs, or [ErrNotFound].
func (db Authorities) InstallationCA() (CA, error) { return db.getCA(layout.Global) }

// SetInstallationCA stores the authority that signs the certificates of public URLs.
func (db Authorities) SetInstallationCA(ca CA) error {
	return db.update(func(tx *transaction) error { return putCA(tx, layout.Global, ca) })
}

func (db Authorities) getCA(owner string) (CA, error) {
	var rec caRecord
	var key string
	err := db.view(func(tx *transaction) error {
		data, err := tx.get(layout.CAs, []byte(owner))
		if err != nil {
			return err
		}
		if data == nil {
			return fmt.Errorf("certificate authority of %s: %w", owner, ErrNotFound)
		}
		if err := document.Decode(data, &rec); err != nil {
			return fmt.Errorf("the certificate authority of %s is damaged: %w", owner, err)
		}
		return tx.openJSON(layout.CAs, owner, rec.Key, &key)
	})
	if err != nil {
		return CA{}, err
	}
	return CA{CertPEM: rec.Cert, KeyPEM: name.NewSecret(key)}, nil
}

func putCA(tx *transaction, owner string, ca CA) error {
	sealed, err := tx.sealJSON(layout.CAs, owner, ca.KeyPEM.Reveal())
	if err != nil {
		return err
	}
	data, err := json.Marshal(caRecord{Cert: ca.CertPEM, Key: sealed})
	if err != nil {
		return err
	}
	return tx.put(layout.CAs, []byte(owner), data)
}
