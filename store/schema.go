package store

import (
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// errOlder is returned for a store that looks as if its documents had no tags yet, although its key says that they
// have.
var errOlder = errors.New("it has the layout of a version that did not protect its documents, which the key was not made " +
	"for: restore a backup of the whole state directory, key file included")

// migrate upgrades a store to the current schema, and refuses one that a newer version has written. The schemas
// encrypted with the data key and recorded in the key file cannot be changed by someone who only has the store's file.
func (s *sealer) migrate(b *bolt.DB, k keyring, key []byte, keySchema int, path string) error {
	version, err := schemaOf(b)
	switch {
	case err != nil:
		return fmt.Errorf("the store %s: %w", path, err)
	case version > schemaNow || keySchema > schemaNow:
		return fmt.Errorf("the store %s was written by a newer boxgate (schema %d; this one knows %d): "+
			"run the newer version, or restore a backup made before the upgrade", path, max(version, keySchema), schemaNow)
	case version == schemaNow && keySchema == schemaNow:
		return nil
	case version == schemaPlain && keySchema == schemaPlain && k.schema <= schemaPlain:
		if err := s.protect(b, k, key); err != nil {
			return fmt.Errorf("the store %s could not be upgraded to schema %d, and was not changed: %w", path, schemaNow, err)
		}
		return nil
	}
	return fmt.Errorf("the store %s: %w", path, errOlder)
}

// schemaOf reads the schema version of a store.
func schemaOf(b *bolt.DB) (version int, err error) {
	err = b.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		if meta == nil {
			return errDamaged
		}
		v := meta.Get(keyVersion)
		if len(v) != 4 || binary.BigEndian.Uint32(v) == 0 || binary.BigEndian.Uint32(v) > 1<<16 {
			return fmt.Errorf("its schema version cannot be read: %w", errDamaged)
		}
		version = int(binary.BigEndian.Uint32(v))
		return nil
	})
	return version, err
}

func setSchema(tx *bolt.Tx, version uint32) error {
	return tx.Bucket(bucketMeta).Put(keyVersion, binary.BigEndian.AppendUint32(nil, version))
}

// protect adds tags to all documents of a store of schema 1, in one transaction, after validating all of them.
func (s *sealer) protect(b *bolt.DB, k keyring, key []byte) error {
	content := joinDataKey(key, schemaNow)
	defer clear(content)
	wrapped, err := k.wrap(content)
	if err != nil {
		return err
	}
	if err := s.learn(wrapped, key); err != nil {
		return err
	}
	return b.Update(func(tx *bolt.Tx) error {
		if err := s.understand(tx); err != nil {
			return fmt.Errorf("%w; %w", err, errDamaged)
		}
		if err := errors.Join(putDataKey(tx, wrapped, k.sealing), setSchema(tx, schemaNow)); err != nil {
			return err
		}
		next, err := s.of(tx)
		if err != nil {
			return err
		}
		return writeAgain(tx, next, func(_, _, value []byte) ([]byte, error) { return value, nil })
	})
}
