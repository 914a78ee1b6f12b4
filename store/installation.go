package store

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// Installation has the state of the gateway itself: the ID of the host, the keys of identity tokens, the state of secret sources and
// the head of the audit trail.
type Installation struct{ *file }

// installation is the key of the settings that distinguish this store from the stores of other hosts.
const installation = "installation"

// HostID returns the host's part of the IDs of its boxes: six hexadecimal digits, chosen at random on first use.
func (db Installation) HostID() (id string, err error) {
	err = db.view(func(tx *transaction) error {
		id, err = readHostID(tx)
		return err
	})
	if err != nil || id != "" {
		return id, err
	}
	err = db.update(func(tx *transaction) error {
		if id, err = readHostID(tx); err != nil || id != "" {
			return err
		}
		random := make([]byte, 3)
		_, _ = rand.Read(random) // never fails (crypto/rand)
		id = hex.EncodeToString(random)
		return tx.putSealed(layout.Settings, installation, map[string]string{"host": id})
	})
	return id, err
}

// readHostID reads the host's part of IDs; "" if it has not been chosen.
func readHostID(tx *transaction) (string, error) {
	var known map[string]string
	_, err := tx.getSealed(layout.Settings, installation, &known)
	return known["host"], err
}

// identityKeys is the key of the keys that sign the boxes' identity tokens.
const identityKeys = "identity keys"

// IdentityKeys returns the keys that sign tokens, initially the zero value.
func (db Installation) IdentityKeys() (name.Secret, error) { return db.getText(identityKeys) }

// SetIdentityKeys stores the keys that sign tokens, sealed.
func (db Installation) SetIdentityKeys(text name.Secret) error { return db.setText(identityKeys, text) }

// boxTokenKey is the key of the key that access tokens of boxes are derived from.
const boxTokenKey = "box token key"

// BoxTokenKey returns the key that access tokens of boxes are derived from, initially the zero value.
func (db Installation) BoxTokenKey() (name.Secret, error) { return db.getText(boxTokenKey) }

// SetBoxTokenKeyOnce stores the key that access tokens of boxes are derived from, sealed, unless there is one.
func (db Installation) SetBoxTokenKeyOnce(key name.Secret) error {
	return db.setTextOnce(boxTokenKey, key)
}

// getText returns a text of the installation, initially the zero value.
func (f *file) getText(key string) (name.Secret, error) {
	known := map[string]string{}
	err := f.view(func(tx *transaction) error {
		_, err := tx.getSealed(layout.Settings, key, &known)
		return err
	})
	if err != nil || known["text"] == "" {
		return name.Secret{}, err
	}
	return name.NewSecret(known["text"]), nil
}

// setText replaces a text of the installation. It is sealed.
func (f *file) setText(key string, text name.Secret) error { return f.putText(key, text, true) }

// setTextOnce is setText, unless the text exists.
func (f *file) setTextOnce(key string, text name.Secret) error { return f.putText(key, text, false) }

func (f *file) putText(key string, text name.Secret, replace bool) error {
	return f.update(func(tx *transaction) error {
		settings, err := tx.table(layout.Settings)
		if err != nil || !replace && settings.Has([]byte(key)) {
			return err
		}
		return tx.putSealed(layout.Settings, key, map[string]string{"text": text.Reveal()})
	})
}

// fleetMembership is the key of the membership of this host in a fleet.
const fleetMembership = "fleet"

// Fleet returns the membership of this host in a fleet, as it was stored, initially the zero value.
func (db Installation) Fleet() (name.Secret, error) { return db.getText(fleetMembership) }

// SetFleet stores the membership of this host in a fleet, sealed. The zero value ends it.
func (db Installation) SetFleet(text name.Secret) error { return db.setText(fleetMembership, text) }

// sourceMemory is the prefix of the keys for the state of secret sources.
const sourceMemory = "source "

// Remembered returns the text last stored for the source of a secret, initially the zero value.
func (db Installation) Remembered(secret string) (name.Secret, error) {
	return db.getText(sourceMemory + secret)
}

// Remember replaces the text stored for the source of a secret. It is sealed.
func (db Installation) Remember(secret string, text name.Secret) error {
	return db.setText(sourceMemory+secret, text)
}

// trailHead is the key of the last known entry of the audit trail.
const trailHead = "audit trail"

// TrailHead returns the text last stored by [Installation.SetTrailHead], initially "".
func (db Installation) TrailHead() (string, error) {
	text, err := db.getText(trailHead)
	return text.Reveal(), err
}

// SetTrailHead stores the last entry of the audit trail, so that cutting off the trail's end is detected.
func (db Installation) SetTrailHead(text string) error {
	return db.setText(trailHead, name.NewSecret(text))
}

// Environment has the variables that new boxes get.
type Environment struct{ *file }

// environment is the key of the variables for new boxes.
const environment = "environment"

// Variables returns the variables that new boxes get.
func (db Environment) Variables() (map[string]name.Secret, error) {
	var vars map[string]string
	err := db.view(func(tx *transaction) (err error) {
		vars, err = readEnvironment(tx)
		return err
	})
	return toSecrets(vars), err
}

// Change changes the variables that new boxes get. If change returns an error, they stay unchanged.
func (db Environment) Change(change func(vars map[string]name.Secret) error) error {
	return db.update(func(tx *transaction) error {
		plain, err := readEnvironment(tx)
		if err != nil {
			return err
		}
		vars := toSecrets(plain)
		if err := change(vars); err != nil {
			return err
		}
		return tx.putSealed(layout.Settings, environment, toPlain(vars))
	})
}

// readEnvironment reads the variables; the map is never nil.
func readEnvironment(tx *transaction) (map[string]string, error) {
	vars := map[string]string{}
	_, err := tx.getSealed(layout.Settings, environment, &vars)
	return vars, err
}

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
