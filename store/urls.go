package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// SetURL stores a public URL, replacing that of the same port. It returns [ErrHostTaken], with the name, if another URL
// has one of the host names.
func (db *DB) SetURL(u URL) error {
	data, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return db.bolt.Update(func(tx *bolt.Tx) error {
		if err := requireBox(tx, u.Box); err != nil {
			return err
		}
		urls, err := db.table(tx, layout.URLs)
		if err != nil {
			return err
		}
		key := urlKey(u.Box, u.Port)
		if err := hostsFree(urls, key, u.Hostnames); err != nil {
			return err
		}
		return urls.Put(key, data)
	})
}

// hostsFree returns [ErrHostTaken] if a URL other than that of a key has one of the host names.
func hostsFree(urls document.Table, own []byte, hosts []string) error {
	if len(hosts) == 0 {
		return nil
	}
	return urls.Each(nil, func(key, data []byte) error {
		var other URL
		if err := decodeURL(data, &other); err != nil || bytes.Equal(key, own) {
			return err
		}
		for _, host := range hosts {
			if slices.Contains(other.Hostnames, host) {
				return fmt.Errorf("%s: %w", host, ErrHostTaken)
			}
		}
		return nil
	})
}

// URL returns the public URL of one port of a box, or [ErrNotFound].
func (db *DB) URL(id policy.BoxID, port uint16) (URL, error) {
	var u URL
	err := db.bolt.View(func(tx *bolt.Tx) error {
		urls, err := db.table(tx, layout.URLs)
		if err != nil {
			return err
		}
		data, err := urls.Get(urlKey(id, port))
		if err != nil {
			return err
		}
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
		urls, err := db.table(tx, layout.URLs)
		if err != nil {
			return err
		}
		return urls.Each(urlPrefix(id), func(_, data []byte) error {
			var u URL
			err := decodeURL(data, &u)
			out = append(out, u)
			return err
		})
	})
	return out, err
}

// DeleteURL removes the public URL of one port of a box, or returns [ErrNotFound].
func (db *DB) DeleteURL(id policy.BoxID, port uint16) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		urls, err := db.table(tx, layout.URLs)
		if err != nil {
			return err
		}
		if !urls.Has(urlKey(id, port)) {
			return fmt.Errorf("public URL of port %d of box %s: %w", port, id, ErrNotFound)
		}
		return urls.Delete(urlKey(id, port))
	})
}

func (db *DB) deleteURLs(tx *bolt.Tx, id policy.BoxID) error {
	urls, err := db.table(tx, layout.URLs)
	if err != nil {
		return err
	}
	for _, k := range urls.Keys(urlPrefix(id)) {
		if err := urls.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// urlPrefix is the prefix of the keys of a box's URLs. The NUL keeps one ID from being a prefix of another.
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
	if err := document.Decode(data, u); err != nil {
		return fmt.Errorf("the record of a public URL is damaged: %w", err)
	}
	return nil
}
