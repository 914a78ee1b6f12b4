package store

import (
	bolt "go.etcd.io/bbolt"

	"boxgate/policy/name"
	"boxgate/store/layout"
)

// identityKeys is the key of the keys that sign the boxes' identity tokens.
const identityKeys = "identity keys"

// IdentityKeys returns the keys that sign tokens, initially the zero value.
func (db *DB) IdentityKeys() (name.Secret, error) { return db.getText(identityKeys) }

// SetIdentityKeys stores the keys that sign tokens, sealed.
func (db *DB) SetIdentityKeys(text name.Secret) error { return db.setText(identityKeys, text) }

// getText returns a text of the installation, initially the zero value.
func (db *DB) getText(key string) (name.Secret, error) {
	known := map[string]string{}
	err := db.bolt.View(func(tx *bolt.Tx) error {
		settings, err := db.table(tx, layout.Settings)
		if err != nil {
			return err
		}
		sealed, err := settings.Get([]byte(key))
		if err != nil || sealed == nil {
			return err
		}
		return db.seal.OpenJSON(tx, layout.Settings, key, sealed, &known)
	})
	if err != nil || known["text"] == "" {
		return name.Secret{}, err
	}
	return name.NewSecret(known["text"]), nil
}

// setText replaces a text of the installation. It is sealed.
func (db *DB) setText(key string, text name.Secret) error { return db.putText(key, text, true) }

// setTextOnce is setText, unless the text exists.
func (db *DB) setTextOnce(key string, text name.Secret) error { return db.putText(key, text, false) }

func (db *DB) putText(key string, text name.Secret, replace bool) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		sealed, err := db.seal.SealJSON(tx, layout.Settings, key, map[string]string{"text": text.Reveal()})
		if err != nil {
			return err
		}
		settings, err := db.table(tx, layout.Settings)
		if err != nil || !replace && settings.Has([]byte(key)) {
			return err
		}
		return settings.Put([]byte(key), sealed)
	})
}
