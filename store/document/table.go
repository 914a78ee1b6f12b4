package document

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"math/bits"

	bolt "go.etcd.io/bbolt"

	"boxgate/store/layout"
)

// Transaction is a transaction that changes documents of several tables. It keeps the total in memory and writes it in
// [Transaction.Flush]. Not safe for concurrent use.
type Transaction struct {
	sealer *Sealer
	tx     *bolt.Tx
	tags   *tagger
	total  total // if known
	known  bool
	lasts  bool // the total is written by Flush, not with each change
	stale  bool // the total on disk is not the current one
}

// Begin returns a transaction that changes documents. Flush must be called before it is committed.
func (s *Sealer) Begin(tx *bolt.Tx) *Transaction {
	return &Transaction{sealer: s, tx: tx, lasts: true}
}

// Flush writes the total.
func (t *Transaction) Flush() error {
	if !t.stale {
		return nil
	}
	t.stale = false
	return setTotal(t.tags, t.tx.Bucket(layout.Meta), t.total)
}

// Table returns the documents of a bucket.
func (t *Transaction) Table(name []byte) (Table, error) {
	if t.tags == nil {
		keys, err := t.sealer.Key(t.tx)
		if err != nil {
			return Table{}, err
		}
		t.tags = newTagger(keys.tags)
	}
	return Table{of: t, name: name, bucket: t.tx.Bucket(name)}, nil
}

// change updates the total.
func (t *Transaction) change(update func(*total)) (err error) {
	if !t.known {
		if t.total, err = totalIn(t.tags, t.tx.Bucket(layout.Meta)); err != nil {
			return err
		}
		t.known = true
	}
	update(&t.total)
	if t.stale = true; t.lasts {
		return nil
	}
	return t.Flush()
}

// Table is one bucket in one transaction. All documents are read and written through it.
type Table struct {
	of     *Transaction
	name   []byte
	bucket *bolt.Bucket
}

// Table returns the documents of a bucket in a transaction. Each change also writes the total.
func (s *Sealer) Table(tx *bolt.Tx, name []byte) (Table, error) {
	return (&Transaction{sealer: s, tx: tx}).Table(name)
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
		tag := t.of.tags.of(t.name, key, value[tagSize:])
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
	tag := t.of.tags.of(t.name, key, document)
	if err := t.of.change(func(sum *total) { sum.add(tag) }); err != nil {
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
	if err := t.of.change(func(sum *total) { sum.subtract(tag) }); err != nil {
		return err
	}
	return t.bucket.Delete(key)
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
	all := &Transaction{tx: tx, tags: newTagger(key.tags), known: true, lasts: true, stale: true}
	for _, name := range layout.Documents {
		t := Table{of: all, name: name, bucket: tx.Bucket(name)}
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
	return all.Flush()
}

// Every document carries a tag: a MAC, under a key derived from the data key, over the bucket, the key and the document
// itself. So reading detects every change and move by a failing disk, or by a person without the data key. Missing and
// resurrected documents are detected when the store is opened: the total, which has its own MAC, is the number of
// documents and the sum of their tags.
//
// A whole file that was restored together with its key file is an earlier valid state, and is accepted.

const tagSize = sha256.Size

// tagger makes tags with one key. Not safe for concurrent use.
type tagger struct {
	mac    hash.Hash
	length [8]byte
	sum    [tagSize]byte
}

func newTagger(key []byte) *tagger { return &tagger{mac: hmac.New(sha256.New, key)} }

// of is the MAC of parts. Each is preceded by its length, so that different lists never have the same encoding.
func (t *tagger) of(parts ...[]byte) [tagSize]byte {
	t.mac.Reset()
	for _, p := range parts {
		binary.BigEndian.PutUint64(t.length[:], uint64(len(p)))
		t.mac.Write(t.length[:])
		t.mac.Write(p)
	}
	t.mac.Sum(t.sum[:0])
	return t.sum
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
func (t total) encode(tags *tagger, meta *bolt.Bucket) []byte {
	out := binary.LittleEndian.AppendUint64(nil, t.documents)
	for _, s := range t.sum {
		out = binary.LittleEndian.AppendUint64(out, s)
	}
	tag := tags.of(layout.Meta, layout.Total, meta.Get(layout.Version), meta.Get(layout.Sealing), out)
	return append(out, tag[:]...)
}

// errTotal is returned when the documents of a store are not exactly the written ones.
var errTotal = errors.New("documents are missing, or replaced or deleted ones have come back")

// totalIn reads the total of a transaction.
func totalIn(tags *tagger, meta *bolt.Bucket) (t total, err error) {
	data := meta.Get(layout.Total)
	if len(data) != 8+8*len(t.sum)+tagSize {
		return total{}, errTotal
	}
	t.documents = binary.LittleEndian.Uint64(data)
	for i := range t.sum {
		t.sum[i] = binary.LittleEndian.Uint64(data[8+8*i:])
	}
	if !hmac.Equal(data, t.encode(tags, meta)) {
		return total{}, errTotal
	}
	return t, nil
}

// setTotal writes the total of a transaction.
func setTotal(tags *tagger, meta *bolt.Bucket, t total) error {
	return meta.Put(layout.Total, t.encode(tags, meta))
}

// InitTotal writes the total of a store without documents.
func (s *Sealer) InitTotal(tx *bolt.Tx) error {
	key, err := s.Key(tx)
	if err != nil {
		return err
	}
	return setTotal(newTagger(key.tags), tx.Bucket(layout.Meta), total{})
}

// ChangeMeta verifies the total, applies a change to the other values that its MAC covers, and writes the total again.
func (s *Sealer) ChangeMeta(tx *bolt.Tx, change func() error) error {
	key, err := s.Key(tx)
	if err != nil {
		return err
	}
	meta, tags := tx.Bucket(layout.Meta), newTagger(key.tags)
	sum, err := totalIn(tags, meta)
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	return setTotal(tags, meta, sum)
}

// Check verifies every document and compares them with the total.
func (s *Sealer) Check(tx *bolt.Tx) error {
	keys, err := s.Key(tx)
	if err != nil {
		return err
	}
	var found total
	all := &Transaction{tx: tx, tags: newTagger(keys.tags)}
	for _, name := range layout.Documents {
		t := Table{of: all, name: name, bucket: tx.Bucket(name)}
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
	want, err := totalIn(all.tags, tx.Bucket(layout.Meta))
	if err == nil && found != want {
		err = errTotal
	}
	return err
}
