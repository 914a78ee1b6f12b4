package document

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/bits"

	bolt "go.etcd.io/bbolt"

	"boxgate/store/layout"
)

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
