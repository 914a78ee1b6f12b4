package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"boxgate/store/document"
	"boxgate/store/keyring"
	"boxgate/store/layout"
	"boxgate/store/pages"
)

// errOlder is returned for a store that seems to predate tags, although its key does not.
var errOlder = errors.New("it has the layout of a version that did not protect its documents, which the key was not made " +
	"for: restore a backup of the whole state directory, key file included")

// migrate upgrades a store to the current schema, and refuses one written by a newer version. The schema is also
// encrypted with the data key and recorded in the key file, so that an attacker with access to only the store's file
// cannot change it.
func migrate(s *document.Sealer, b *bolt.DB, k keyring.Keyring, key []byte, keySchema int, path string) error {
	version, err := schemaOf(b)
	switch {
	case err != nil:
		return fmt.Errorf("the store %s: %w", path, err)
	case version > layout.SchemaNow || keySchema > layout.SchemaNow:
		return tooNew(path, max(version, keySchema))
	case version >= layout.SchemaTagged && keySchema >= layout.SchemaTagged:
		return addMissingBuckets(s, b, version)
	case version == layout.SchemaPlain && keySchema == layout.SchemaPlain && k.Schema <= layout.SchemaPlain:
		if err := addTags(s, b, k, key); err != nil {
			return fmt.Errorf("the store %s could not be upgraded to schema %d, and was not changed: %w", path, layout.SchemaNow, err)
		}
		return nil
	}
	return fmt.Errorf("the store %s: %w", path, errOlder)
}

// tooNew refuses a schema that this version does not support.
func tooNew(path string, version int) error {
	if version <= layout.SchemaNow {
		return nil
	}
	return fmt.Errorf("the store %s was written by a newer boxgate (schema %d; this one knows %d): "+
		"run the newer version, or restore a backup made before the upgrade", path, version, layout.SchemaNow)
}

// addMissingBuckets adds missing buckets, in one transaction. Removing an empty bucket goes unnoticed; the documents of
// a removed bucket are missing from the total.
func addMissingBuckets(s *document.Sealer, b *bolt.DB, version int) error {
	whole := version == layout.SchemaNow
	_ = b.View(func(tx *bolt.Tx) error {
		for _, name := range layout.Documents {
			whole = whole && tx.Bucket(name) != nil
		}
		return nil
	})
	if whole {
		return nil
	}
	return b.Update(func(tx *bolt.Tx) error {
		if err := addBuckets(tx, layout.Documents); err != nil {
			return err
		}
		return s.ChangeMeta(tx, func() error { return setSchema(tx, layout.SchemaNow) })
	})
}

// addBuckets creates missing buckets.
func addBuckets(tx *bolt.Tx, names [][]byte) error {
	for _, name := range names {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	return nil
}

// schemaOf reads the schema version of a store.
func schemaOf(b *bolt.DB) (version int, err error) {
	err = b.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(layout.Meta)
		if meta == nil {
			return pages.ErrDamaged
		}
		v := meta.Get(layout.Version)
		if len(v) != 4 || binary.BigEndian.Uint32(v) == 0 || binary.BigEndian.Uint32(v) > 1<<16 {
			return fmt.Errorf("its schema version cannot be read: %w", pages.ErrDamaged)
		}
		version = int(binary.BigEndian.Uint32(v))
		return nil
	})
	return version, err
}

func setSchema(tx *bolt.Tx, version uint32) error {
	return tx.Bucket(layout.Meta).Put(layout.Version, binary.BigEndian.AppendUint32(nil, version))
}

// addTags adds tags to all documents of a store of schema 1, in one transaction, after validating all of them.
func addTags(s *document.Sealer, b *bolt.DB, k keyring.Keyring, key []byte) error {
	wrapped, err := s.WrapKey(key, k.Wrap)
	if err != nil {
		return err
	}
	return b.Update(func(tx *bolt.Tx) error {
		if err := addBuckets(tx, layout.Added); err != nil {
			return err
		}
		if err := checkAll(s, tx); err != nil {
			return fmt.Errorf("%w; %w", err, pages.ErrDamaged)
		}
		if err := errors.Join(document.PutKey(tx, wrapped, k.Sealing), setSchema(tx, layout.SchemaNow)); err != nil {
			return err
		}
		next, err := s.Key(tx)
		if err != nil {
			return err
		}
		return document.Rewrite(tx, next, func(_, _, value []byte) ([]byte, error) { return value, nil })
	})
}

// openSealer decrypts the data key of a store, and upgrades the store to the current schema if it is older.
func openSealer(b *bolt.DB, dir, passphrase, env, path string) (*document.Sealer, error) {
	k, err := openKey(b, dir, passphrase, env, path)
	if err != nil {
		return nil, err
	}
	defer clear(k.content)
	s := document.NewSealer()
	if err := s.AddKey(k.wrapped, bytes.Clone(k.key)); err != nil {
		return nil, err
	}
	if err := migrate(s, b, k.ring, k.key, k.schema, path); err != nil {
		return nil, err
	}
	return s, k.ring.Normalize(k.index)
}

// dataKey is the data key of a store with its wrapping. The content must be cleared after use.
type dataKey struct {
	ring         keyring.Keyring
	index        int // in the ring, of the identity that unwrapped it
	wrapped      []byte
	content, key []byte // the key is part of the content
	schema       int
}

// openKey reads the data key of a store, without side effects.
func openKey(b *bolt.DB, dir, passphrase, env, path string) (k dataKey, err error) {
	var sealing string
	err = b.View(func(tx *bolt.Tx) error {
		if meta := tx.Bucket(layout.Meta); meta != nil {
			k.wrapped, sealing = bytes.Clone(meta.Get(layout.DataKey)), string(meta.Get(layout.Sealing))
		}
		return nil
	})
	if err != nil {
		return k, err
	}
	if k.wrapped == nil {
		return k, fmt.Errorf("the store %s has no data key: %w", path, pages.ErrDamaged)
	}
	if err := checkSealing(sealing, passphrase, env); err != nil {
		return k, err
	}
	if k.ring, err = keyring.Open(dir, passphrase, env); err != nil {
		return k, err
	}
	if k.content, k.index, err = k.ring.Unwrap(k.wrapped); err != nil {
		return k, err
	}
	k.key, k.schema, err = document.ParseKey(k.content)
	return k, err
}

// checkSealing refuses to open a store with a passphrase or key file if it was created with the other.
func checkSealing(sealing, passphrase, env string) error {
	switch {
	case sealing != layout.SealedByPassphrase && sealing != layout.SealedByFile:
		return fmt.Errorf("the store does not record how its secrets are encrypted: %w", pages.ErrDamaged)
	case sealing == layout.SealedByPassphrase && passphrase == "":
		return fmt.Errorf("the secrets of this store are encrypted with a passphrase: set it in %s", envOrDefault(env))
	case sealing == layout.SealedByFile && passphrase != "":
		return fmt.Errorf("the secrets of this store are encrypted with its key file: unset %s", envOrDefault(env))
	}
	return nil
}

func envOrDefault(env string) string {
	if env == "" {
		return "the environment"
	}
	return env
}
