package document

import (
	"bytes"
	"crypto/hmac"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"boxgate/store/layout"
)

// Table is one bucket in one transaction. All documents are read and written through it.
type Table struct {
	tx     *bolt.Tx
	name   []byte
	bucket *bolt.Bucket
	key    []byte // of the tags
}

// Table returns the documents of a bucket in a transaction.
func (s *Sealer) Table(tx *bolt.Tx, name []byte) (Table, error) {
	keys, err := s.Key(tx)
	if err != nil {
		return Table{}, err
	}
	return Table{tx: tx, name: name, bucket: tx.Bucket(name), key: keys.tags}, nil
}

// Has reports whether a document exists, without verifying it.
func (t Table) Has(key []byte) bool { return t.bucket.Get(key) != nil }

// Cursor iterates over the keys; their values are not verified.
func (t Table) Cursor() *bolt.Cursor { return t.bucket.Cursor() }

// Get returns a document, or nil if the key is missing.
func (t Table) Get(key []byte) ([]byte, error) {
	value := t.bucket.Get(key)
	if value == nil {
		return nil, nil
	}
	return t.verified(key, value)
}

// verified verifies that the tag of a value matches this place, and returns the document without it.
func (t Table) verified(key, value []byte) ([]byte, error) {
	if len(value) >= tagSize {
		tag := tagOf(t.key, t.name, key, value[tagSize:])
		if hmac.Equal(tag[:], value[:tagSize]) {
			return value[tagSize:], nil
		}
	}
	return nil, fmt.Errorf("a document of the store (%s of %q) was changed or moved", t.name, key)
}

// Put writes a document, replacing the existing one.
func (t Table) Put(key, document []byte) error {
	if err := t.Delete(key); err != nil {
		return err
	}
	tag := tagOf(t.key, t.name, key, document)
	if err := t.updateTotal(func(sum *total) { sum.add(tag) }); err != nil {
		return err
	}
	return t.bucket.Put(key, append(tag[:], document...))
}

// Delete removes a document, if there is one.
func (t Table) Delete(key []byte) error {
	value := t.bucket.Get(key)
	if value == nil {
		return nil
	}
	if _, err := t.verified(key, value); err != nil {
		return err
	}
	tag := [tagSize]byte(value)
	if err := t.updateTotal(func(sum *total) { sum.subtract(tag) }); err != nil {
		return err
	}
	return t.bucket.Delete(key)
}

// updateTotal updates the total.
func (t Table) updateTotal(change func(*total)) error {
	meta := t.tx.Bucket(layout.Meta)
	sum, err := totalIn(t.key, meta)
	if err != nil {
		return err
	}
	change(&sum)
	return setTotal(t.key, meta, sum)
}

// Each calls f with every document whose key begins with prefix. f must not change the table.
func (t Table) Each(prefix []byte, f func(key, document []byte) error) error {
	c := t.bucket.Cursor()
	for key, value := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, value = c.Next() {
		document, err := t.verified(key, value)
		if err != nil {
			return err
		}
		if err := f(key, document); err != nil {
			return err
		}
	}
	return nil
}

// Keys returns the keys that begin with prefix.
func (t Table) Keys(prefix []byte) (keys [][]byte) {
	c := t.bucket.Cursor()
	for key, _ := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, _ = c.Next() {
		keys = append(keys, bytes.Clone(key))
	}
	return keys
}

// StripTag removes the tag from a value without verifying it.
func StripTag(value []byte) []byte { return value[tagSize:] }

// Rewrite replaces every document of a store by the result of change for its current value, tagged with key.
func Rewrite(tx *bolt.Tx, key *Key, change func(bucket, key, value []byte) ([]byte, error)) error {
	if err := setTotal(key.tags, tx.Bucket(layout.Meta), total{}); err != nil {
		return err
	}
	for _, name := range layout.Documents {
		t := Table{tx: tx, name: name, bucket: tx.Bucket(name), key: key.tags}
		fresh := map[string][]byte{} // a bucket must not be changed during iteration
		err := t.bucket.ForEach(func(key, value []byte) (err error) {
			document, err := change(name, key, value)
			fresh[string(key)] = bytes.Clone(document)
			return err
		})
		for key, document := range fresh {
			if err == nil {
				err = t.bucket.Delete([]byte(key)) // not t.Delete: its tag has the old key, or is missing
			}
			if err == nil {
				err = t.Put([]byte(key), document)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
