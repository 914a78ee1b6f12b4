package store

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	bolt "go.etcd.io/bbolt"
)

// Every document carries a tag, a MAC under a key that follows from the data key, over the bucket, the key and the
// document itself. So anything that a disk, or a person without the data key, changes or moves is noticed when it is
// read. Documents that are missing or were brought back are noticed when the store is opened: the total, which has a
// MAC of its own, is the number of documents and the sum of their tags.
//
// A whole file that was restored together with its key file is an earlier valid state, and is accepted.

const tagSize = sha256.Size

// keyTotal is the key in the bucket meta of the total: number, sum, MAC.
var keyTotal = []byte("documents")

// tagOf is the MAC of parts. Each is preceded by its length, so that no two lists of parts are the same bytes.
func tagOf(key []byte, parts ...[]byte) (tag [tagSize]byte) {
	mac := hmac.New(sha256.New, key)
	for _, p := range parts {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p))))
		mac.Write(p)
	}
	mac.Sum(tag[:0])
	return tag
}

// total summarises the documents of a store in one value, which can be updated for one document without reading the
// others. Tags are added as 256-bit numbers. An attacker who cannot make tags would have to find old documents whose
// tags cancel out those of the current ones.
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

func (t *total) take(tag [tagSize]byte) {
	t.documents--
	var borrow uint64
	for i := range t.sum {
		t.sum[i], borrow = bits.Sub64(t.sum[i], binary.LittleEndian.Uint64(tag[8*i:]), borrow)
	}
}

// encode returns the total with its MAC, which also covers how the store is sealed and laid out.
func (t total) encode(key []byte, meta *bolt.Bucket) []byte {
	out := binary.LittleEndian.AppendUint64(nil, t.documents)
	for _, s := range t.sum {
		out = binary.LittleEndian.AppendUint64(out, s)
	}
	tag := tagOf(key, bucketMeta, keyTotal, meta.Get(keyVersion), meta.Get(keySealing), out)
	return append(out, tag[:]...)
}

// errTotal is returned when the documents of a store are not exactly those that were written.
var errTotal = errors.New("documents are missing, or replaced or deleted ones have come back")

// totalIn reads the total of a transaction.
func totalIn(key []byte, meta *bolt.Bucket) (t total, err error) {
	data := meta.Get(keyTotal)
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
	return meta.Put(keyTotal, t.encode(key, meta))
}

// checkTags reads every document and compares them with the total.
func (db *DB) checkTags(tx *bolt.Tx) error {
	keys, err := db.seal.of(tx)
	if err != nil {
		return err
	}
	var found total
	for _, name := range documentBuckets {
		t := table{tx: tx, name: name, bucket: tx.Bucket(name), key: keys.tags}
		if t.bucket == nil {
			return errTotal
		}
		err := t.bucket.ForEach(func(key, value []byte) error {
			if _, err := t.document(key, value); err != nil {
				return err
			}
			found.add([tagSize]byte(value))
			return nil
		})
		if err != nil {
			return err
		}
	}
	want, err := totalIn(keys.tags, tx.Bucket(bucketMeta))
	if err == nil && found != want {
		err = errTotal
	}
	return err
}

// table is one bucket in one transaction. All documents are read and written through it.
type table struct {
	tx     *bolt.Tx
	name   []byte
	bucket *bolt.Bucket
	key    []byte // of the tags
}

func (db *DB) table(tx *bolt.Tx, name []byte) (table, error) {
	keys, err := db.seal.of(tx)
	if err != nil {
		return table{}, err
	}
	return table{tx: tx, name: name, bucket: tx.Bucket(name), key: keys.tags}, nil
}

// has reports whether there is a document, without verifying it.
func (t table) has(key []byte) bool { return t.bucket.Get(key) != nil }

// get returns a document, or nil if there is none.
func (t table) get(key []byte) ([]byte, error) {
	value := t.bucket.Get(key)
	if value == nil {
		return nil, nil
	}
	return t.document(key, value)
}

// document verifies that the tag of a value is for this place, and returns the document without it.
func (t table) document(key, value []byte) ([]byte, error) {
	if len(value) >= tagSize {
		tag := tagOf(t.key, t.name, key, value[tagSize:])
		if hmac.Equal(tag[:], value[:tagSize]) {
			return value[tagSize:], nil
		}
	}
	return nil, fmt.Errorf("a document of the store (%s of %q) was changed or moved", t.name, key)
}

// put writes a document, replacing the existing one.
func (t table) put(key, document []byte) error {
	if err := t.delete(key); err != nil {
		return err
	}
	tag := tagOf(t.key, t.name, key, document)
	if err := t.count(func(sum *total) { sum.add(tag) }); err != nil {
		return err
	}
	return t.bucket.Put(key, append(tag[:], document...))
}

// delete removes a document, if there is one.
func (t table) delete(key []byte) error {
	value := t.bucket.Get(key)
	if value == nil {
		return nil
	}
	if _, err := t.document(key, value); err != nil {
		return err
	}
	tag := [tagSize]byte(value)
	if err := t.count(func(sum *total) { sum.take(tag) }); err != nil {
		return err
	}
	return t.bucket.Delete(key)
}

// count changes the total.
func (t table) count(change func(*total)) error {
	meta := t.tx.Bucket(bucketMeta)
	sum, err := totalIn(t.key, meta)
	if err != nil {
		return err
	}
	change(&sum)
	return setTotal(t.key, meta, sum)
}

// each calls f with every document whose key begins with prefix. f must not change the table.
func (t table) each(prefix []byte, f func(key, document []byte) error) error {
	c := t.bucket.Cursor()
	for key, value := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, value = c.Next() {
		document, err := t.document(key, value)
		if err != nil {
			return err
		}
		if err := f(key, document); err != nil {
			return err
		}
	}
	return nil
}

// keys returns the keys that begin with prefix.
func (t table) keys(prefix []byte) (keys [][]byte) {
	c := t.bucket.Cursor()
	for key, _ := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, _ = c.Next() {
		keys = append(keys, bytes.Clone(key))
	}
	return keys
}
