package store

import (
	"errors"
	"fmt"
	"hash/crc32"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
)

// openWhole opens a bbolt file and reads all of it, since bbolt itself looks at pages as they are needed and panics, or
// lets the process die of a memory fault, when one is damaged or cut off.
func openWhole(path string, o *bolt.Options) (b *bolt.DB, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			// The half-opened file stays locked until the process ends, which a start that fails leads to.
			b, err = nil, errDamaged
		}
	}()
	if b, err = bolt.Open(path, 0o600, o); err != nil {
		return nil, err
	}
	if err := b.View(readAll); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

var errDamaged = errors.New("it is damaged: restore a backup of the state directory, or move the file away and delete the boxes")

// readAll touches every page that can be reached, here, where a fault can be caught; then bbolt checks how they hang
// together.
func readAll(tx *bolt.Tx) error {
	var read uint32
	var walk func(*bolt.Bucket) error
	walk = func(b *bolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			if v == nil && b.Bucket(k) != nil {
				return walk(b.Bucket(k))
			}
			read = crc32.Update(read, crc32.IEEETable, v) // a long value has pages of its own
			return nil
		})
	}
	if err := tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return walk(b) }); err != nil {
		return err
	}
	var first error
	for err := range tx.Check() { // to its end, or its goroutine would never be
		if first == nil {
			first = fmt.Errorf("%w (%w)", errDamaged, err)
		}
	}
	return first
}
