package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
)

// SetURL keeps a public URL, in the place of the one that the port had.
func (db *DB) SetURL(u URL) error {
	data, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return db.bolt.Update(func(tx *bolt.Tx) error {
		if err := requireBox(tx, u.Box); err != nil {
			return err
		}
		return tx.Bucket(bucketURLs).Put(urlKey(u.Box, u.Port), data)
	})
}

// URL returns the public URL of one port of a box, or [ErrNotFound].
func (db *DB) URL(id policy.BoxID, port uint16) (URL, error) {
	var u URL
	err := db.bolt.View(func(tx *bolt.Tx) error {
		data := tx.Bucket(bucketURLs).Get(urlKey(id, port))
		if data == nil {
			return fmt.Errorf("public URL of port %d of box %s: %w", port, id, ErrNotFound)
		}
		return decodeURL(data, &u)
	})
	return u, err
}

// URLs returns the public URLs of a box by port, or those of all boxes for the ID "".
func (db *DB) URLs(id policy.BoxID) ([]URL, error) {
	var out []URL
	err := db.bolt.View(func(tx *bolt.Tx) error {
		prefix := urlPrefix(id)
		c := tx.Bucket(bucketURLs).Cursor()
		for k, data := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, data = c.Next() {
			var u URL
			if err := decodeURL(data, &u); err != nil {
				return err
			}
			out = append(out, u)
		}
		return nil
	})
	return out, err
}

// DeleteURL removes the public URL of one port of a box, or answers [ErrNotFound].
func (db *DB) DeleteURL(id policy.BoxID, port uint16) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		urls := tx.Bucket(bucketURLs)
		if urls.Get(urlKey(id, port)) == nil {
			return fmt.Errorf("public URL of port %d of box %s: %w", port, id, ErrNotFound)
		}
		return urls.Delete(urlKey(id, port))
	})
}

func deleteURLs(tx *bolt.Tx, id policy.BoxID) error {
	prefix := urlPrefix(id)
	var keys [][]byte // a cursor must not be moved on after a deletion under it
	c := tx.Bucket(bucketURLs).Cursor()
	for k, _ := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		keys = append(keys, bytes.Clone(k))
	}
	for _, k := range keys {
		if err := tx.Bucket(bucketURLs).Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// urlPrefix is what the keys of a box's URLs begin with. The NUL keeps one ID from being the beginning of another.
func urlPrefix(id policy.BoxID) []byte {
	if id == "" {
		return nil
	}
	return append([]byte(id), 0)
}

func urlKey(id policy.BoxID, port uint16) []byte {
	return binary.BigEndian.AppendUint16(append([]byte(id), 0), port)
}

func decodeURL(data []byte, u *URL) error {
	if err := json.Unmarshal(data, u); err != nil {
		return fmt.Errorf("the record of a public URL is damaged: %w", err)
	}
	return nil
}
