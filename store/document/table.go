package document

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

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

// Every document carries a tag: a MAC, under a key derived from the data key, over the bucket, the key and the document
// itself. So reading detects every change and move by a failing disk, or by a person without the data key. Missing and
// resurrected documents are detected when the store is opened: the total, which has its own MAC, is the number of
// documents and the sum of their tags.
//
// A whole file that was restored together with its key file is an earlier valid state, and is accepted.

const tagSize = sha256.Size

// tagOf is the MAC of parts. Each is preceded by its length, so that different lists never have the same encoding.
func tagOf(key []byte, parts ...[]byte) (tag [tagSize]byte) {
	mac := hmac.New(sha256.New, key)
	for _, p := range parts {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p))))
		mac.Write(p)
	}
	mac.Sum(tag[:0])
	return tag
}

// total summarizes the documents of a store in one value, which can be updated for one document without reading the
// others. Tags are added as 256-bit numbers. An attacker who cannot make tags would have to find old documents whose
// tags cancel out the tags of the current ones.
type total struct {
	documents uint64
	sum       [4]uint64
}

// add adds a document; take removes it.
func (t *total) add(tag [tagSize]byte) {
	t.documents++
	var carry uint64
	for i := range t.sum {
		t.sum[i], carry = bits.Add64(t.sum[i], binary.LittleEndian.Uint64(tag[8*i:]), carry)
	}
}

func (t *total) subtract(tag [tagSize]byte) {
	t.documents--
	var borrow uint64
	for i := range t.sum {
		t.sum[i], borrow = bits.Sub64(t.sum[i], binary.LittleEndian.Uint64(tag[8*i:]), borrow)
	}
}

// encode returns the total with its MAC, which also covers the store's sealing and schema.
func (t total) encode(key []byte, meta *bolt.Bucket) []byte {
	out := binary.LittleEndian.AppendUint64(nil, t.documents)
	for _, s := range t.sum {
		out = binary.LittleEndian.AppendUint64(out, s)
	}
	tag := tagOf(key, layout.Meta, layout.Total, meta.Get(layout.Version), meta.Get(layout.Sealing), out)
	return append(out, tag[:]...)
}

// errTotal is returned when the documents of a store are not exactly the written ones.
var errTotal = errors.New("documents are missing, or replaced or deleted ones have come back")

// totalIn reads the total of a transaction.
func totalIn(key []byte, meta *bolt.Bucket) (t total, err error) {
	data := meta.Get(layout.Total)
	if len(data) != 8+8*len(t.sum)+tagSize {
		return total{}, errTotal
	}
	t.documents = binary.LittleEndian.Uint64(data)
	for i := range t.sum {
		t.sum[i] = binary.LittleEndian.Uint64(data[8+8*i:])
	}
	if !hmac.Equal(data, t.encode(key, meta)) {
		return total{}, errTotal
	}
	return t, nil
}

// setTotal writes the total of a transaction.
func setTotal(key []byte, meta *bolt.Bucket, t total) error {
	return meta.Put(layout.Total, t.encode(key, meta))
}

// InitTotal writes the total of a store without documents.
func (s *Sealer) InitTotal(tx *bolt.Tx) error {
	key, err := s.Key(tx)
	if err != nil {
		return err
	}
	return setTotal(key.tags, tx.Bucket(layout.Meta), total{})
}

// ChangeMeta verifies the total, applies a change to the other values that its MAC covers, and writes the total again.
func (s *Sealer) ChangeMeta(tx *bolt.Tx, change func() error) error {
	key, err := s.Key(tx)
	if err != nil {
		return err
	}
	meta := tx.Bucket(layout.Meta)
	sum, err := totalIn(key.tags, meta)
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	return setTotal(key.tags, meta, sum)
}

// Check verifies every document and compares them with the total.
func (s *Sealer) Check(tx *bolt.Tx) error {
	keys, err := s.Key(tx)
	if err != nil {
		return err
	}
	var found total
	for _, name := range layout.Documents {
		t := Table{tx: tx, name: name, bucket: tx.Bucket(name), key: keys.tags}
		if t.bucket == nil {
			return errTotal
		}
		err := t.bucket.ForEach(func(key, value []byte) error {
			if _, err := t.verified(key, value); err != nil {
				return err
			}
			found.add([tagSize]byte(value))
			return nil
		})
		if err != nil {
			return err
		}
	}
	want, err := totalIn(keys.tags, tx.Bucket(layout.Meta))
	if err == nil && found != want {
		err = errTotal
	}
	return err
}
