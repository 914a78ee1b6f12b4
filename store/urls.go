package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// urlRecord is a stored public URL: its key is sealed.
type urlRecord struct {
	URL
	Sealed []byte `json:"key,omitempty"`
}

// SetURL stores a public URL, replacing that of the same port. It returns [ErrHostTaken], with the name, if another URL
// has one of the host names, and [ErrHostUnproven] or a [*KeptDomainError] if the claim does not cover one. Names that
// the URL of this port already has need no claim.
func (db *DB) SetURL(u URL, by Claim) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		if err := requireBox(tx, u.Box); err != nil {
			return err
		}
		urls, err := db.table(tx, layout.URLs)
		if err != nil {
			return err
		}
		if err := hostsFree(urls, urlKey(u.Box, u.Port), slices.Concat(u.Hostnames, u.Pending)); err != nil {
			return err
		}
		old, err := db.getURL(tx, u.Box, u.Port)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if err := db.claimDomains(tx, old, u, by); err != nil {
			return err
		}
		return db.putURL(tx, u)
	})
}

// hostsFree returns [ErrHostTaken] if a URL other than the one with key own has one of the host names.
func hostsFree(urls document.Table, own []byte, hosts []string) error {
	if len(hosts) == 0 {
		return nil
	}
	return urls.Each(nil, func(key, data []byte) error {
		other, err := decodeURL(data)
		if err != nil || bytes.Equal(key, own) {
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

// ChangeURL changes the public URL of one port of a box if it still has the given creation time, else it returns
// [ErrNotFound].
func (db *DB) ChangeURL(id policy.BoxID, port uint16, created time.Time, change func(*URL)) (URL, error) {
	var u URL
	err := db.bolt.Update(func(tx *bolt.Tx) (err error) {
		if u, err = db.getURL(tx, id, port); err != nil {
			return err
		}
		if !u.CreatedAt.Equal(created) {
			return fmt.Errorf("public URL of port %d of box %s, before it was replaced: %w", port, id, ErrNotFound)
		}
		change(&u)
		return db.putURL(tx, u)
	})
	return u, err
}

func (db *DB) putURL(tx *bolt.Tx, u URL) error {
	key, record := urlKey(u.Box, u.Port), urlRecord{URL: u}
	if secret := u.Key.Reveal(); secret != "" {
		sealed, err := db.seal.SealJSON(tx, layout.URLs, string(key), []byte(secret))
		if err != nil {
			return err
		}
		record.Sealed = sealed
	}
	data, err := json.Marshal(record)
	if err != nil {
		return err
	}
	urls, err := db.table(tx, layout.URLs)
	if err != nil {
		return err
	}
	old, err := db.getURL(tx, u.Box, u.Port)
	db.subtractReplaced(tx, old.Owner, ofURL(old), err)
	db.adjustOnCommit(tx, u.Owner, 1, ofURL(u))
	return urls.Put(key, data)
}

func (db *DB) getURL(tx *bolt.Tx, id policy.BoxID, port uint16) (URL, error) {
	urls, err := db.table(tx, layout.URLs)
	if err != nil {
		return URL{}, err
	}
	data, err := urls.Get(urlKey(id, port))
	if err != nil {
		return URL{}, err
	}
	if data == nil {
		return URL{}, fmt.Errorf("public URL of port %d of box %s: %w", port, id, ErrNotFound)
	}
	return db.openURL(tx, urlKey(id, port), data)
}

// openURL decodes a record and opens its sealed part.
func (db *DB) openURL(tx *bolt.Tx, key, data []byte) (URL, error) {
	record, err := decodeURL(data)
	if err != nil || record.Sealed == nil {
		return record.URL, err
	}
	var secret []byte
	if err := db.seal.OpenJSON(tx, layout.URLs, string(key), record.Sealed, &secret); err != nil {
		return URL{}, err
	}
	record.Key = name.NewSecret(string(secret))
	return record.URL, nil
}

// URL returns the public URL of one port of a box, or [ErrNotFound].
func (db *DB) URL(id policy.BoxID, port uint16) (u URL, err error) {
	err = db.bolt.View(func(tx *bolt.Tx) error {
		u, err = db.getURL(tx, id, port)
		return err
	})
	return u, err
}

// URLs returns the public URLs of a box sorted by port, or of all boxes if id is "".
func (db *DB) URLs(id policy.BoxID) ([]URL, error) {
	var out []URL
	err := db.bolt.View(func(tx *bolt.Tx) error {
		urls, err := db.table(tx, layout.URLs)
		if err != nil {
			return err
		}
		return urls.Each(urlPrefix(id), func(key, data []byte) error {
			u, err := db.openURL(tx, key, data)
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
		old, err := db.getURL(tx, id, port)
		if err != nil {
			return err
		}
		if err := db.freeDomains(tx, []URL{old}, time.Now().UTC()); err != nil {
			return err
		}
		db.subtractReplaced(tx, old.Owner, ofURL(old), nil)
		return urls.Delete(urlKey(id, port))
	})
}

// deleteURLs deletes the URLs of a box, whose record must still exist.
func (db *DB) deleteURLs(tx *bolt.Tx, id policy.BoxID) error {
	urls, err := db.table(tx, layout.URLs)
	if err != nil {
		return err
	}
	var gone []URL
	err = urls.Each(urlPrefix(id), func(_, data []byte) error {
		record, err := decodeURL(data)
		gone = append(gone, record.URL)
		return err
	})
	if err != nil {
		return err
	}
	if err := db.freeDomains(tx, gone, time.Now().UTC()); err != nil {
		return err
	}
	for _, u := range gone {
		db.subtractReplaced(tx, u.Owner, ofURL(u), nil)
	}
	for _, k := range urls.Keys(urlPrefix(id)) {
		if err := urls.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// urlPrefix is the key prefix of a box's URLs and schedules. The NUL keeps one ID from being a prefix of another.
func urlPrefix(id policy.BoxID) []byte {
	if id == "" {
		return nil
	}
	return append([]byte(id), 0)
}

func urlKey(id policy.BoxID, port uint16) []byte {
	return binary.BigEndian.AppendUint16(append([]byte(id), 0), port)
}

func decodeURL(data []byte) (urlRecord, error) {
	var record urlRecord
	if err := document.Decode(data, &record); err != nil {
		return urlRecord{}, fmt.Errorf("the record of a public URL is damaged: %w", err)
	}
	return record, nil
}
