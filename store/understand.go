package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// bucketReader checks the documents of one bucket.
type bucketReader struct {
	bucket []byte
	check  func(key, value []byte) error
}

// checkAll reads every document of a store of schema 1, in which damage shows only in the documents themselves: each
// must be complete and well-formed, stored under the right key, and have the documents that belong with it.
func checkAll(s *document.Sealer, tx *bolt.Tx) error {
	boxes := map[string]Box{}
	for _, r := range slices.Concat(plainReaders(boxes, checkPolicy), sealedReaders(s, tx), indexReaders(boxes)) {
		bucket := tx.Bucket(r.bucket)
		if bucket == nil {
			return fmt.Errorf("it has no %s", r.bucket)
		}
		if err := bucket.ForEach(r.check); err != nil {
			return fmt.Errorf("%s: %w", r.bucket, err)
		}
	}
	for id, b := range boxes {
		if err := checkComplete(tx, id, b); err != nil {
			return err
		}
	}
	return nil
}

// plainReaders check documents that are not encrypted, and collect the boxes.
func plainReaders(boxes map[string]Box, policy func(key string, p Policy) error) []bucketReader {
	return []bucketReader{
		{layout.Boxes, decodeThen(func(key string, b Box) error {
			boxes[key] = b
			return checkKey(key, string(b.ID))
		})},
		{layout.Policies, decodeThen(policy)},
		{layout.Usage, decodeThen(func(string, Usage) error { return nil })},
		{layout.APIKeys, decodeThen(func(key string, k APIKey) error { return checkKey(key, string(k.Hash[:])) })},
	}
}

// sealedReaders check documents that are encrypted in full or in part.
func sealedReaders(s *document.Sealer, tx *bolt.Tx) []bucketReader {
	return []bucketReader{
		{layout.Secrets, func(key, value []byte) error {
			return s.OpenJSON(tx, layout.Secrets, string(key), value, new(sealedBoxFields))
		}},
		{layout.Headers, func(key, value []byte) error {
			return s.OpenJSON(tx, layout.Headers, string(key), value, new(headersRecord))
		}},
		{layout.Staged, func(key, value []byte) error {
			if !bytes.HasPrefix(key, []byte(stagedHeaders)) {
				return decodeThen(checkPolicy)(key, value)
			}
			return s.OpenJSON(tx, layout.Staged, string(key), value, new(headersRecord))
		}},
		{layout.URLs, decodeThen(func(key string, u urlRecord) error {
			if err := checkKey(key, string(urlKey(u.Box, u.Port))); err != nil || u.Sealed == nil {
				return err
			}
			return s.OpenJSON(tx, layout.URLs, key, u.Sealed, new([]byte))
		})},
		{layout.Settings, func(key, value []byte) error {
			return s.OpenJSON(tx, layout.Settings, string(key), value, new(map[string]string))
		}},
		{layout.Schedules, func(key, value []byte) error {
			var sch Schedule
			err := s.OpenJSON(tx, layout.Schedules, string(key), value, &sch)
			return errors.Join(err, checkKey(string(key), string(scheduleKey(sch.Box, sch.ID))))
		}},
		{layout.CAs, decodeThen(func(key string, rec caRecord) error {
			return s.OpenJSON(tx, layout.CAs, key, rec.Key, new(string))
		})},
	}
}

// indexReaders check the indexes of the boxes, which must have been collected.
func indexReaders(boxes map[string]Box) []bucketReader {
	return []bucketReader{
		{layout.Names, func(key, value []byte) error { return checkKey(string(key), boxes[string(value)].Name) }},
		{layout.Indexes, func(key, value []byte) error {
			return checkKey(string(key), string(binary.BigEndian.AppendUint32(nil, boxes[string(value)].Index)))
		}},
		{layout.Addrs, func(key, value []byte) error {
			a, _ := netip.AddrFromSlice(key)
			if b := boxes[string(value)]; b.V4 != a && b.V6 != a {
				return fmt.Errorf("%s is not an address of box %s", a, value)
			}
			return nil
		}},
	}
}

// decodeThen decodes a document for a check.
func decodeThen[T any](check func(key string, document T) error) func(key, value []byte) error {
	return func(key, value []byte) error {
		var v T
		if err := document.Decode(value, &v); err != nil {
			return err
		}
		return check(string(key), v)
	}
}

func checkKey(key, want string) error {
	if key != want {
		return fmt.Errorf("the document at %q belongs at %q", key, want)
	}
	return nil
}

func checkPolicy(_ string, p Policy) error {
	_, err := policy.Compile(p.Spec, policy.Options{Version: p.Version})
	return err
}

// checkComplete requires the documents that every box has from the beginning, and its policy once it has run.
func checkComplete(tx *bolt.Tx, id string, b Box) error {
	wants := map[string]string{string(layout.Secrets): id, string(layout.Indexes): string(binary.BigEndian.AppendUint32(nil, b.Index))}
	if b.Name != "" {
		wants[string(layout.Names)] = b.Name
	}
	if !slices.Contains([]string{"", "creating", "deleted"}, strings.ToLower(b.State)) {
		wants[string(layout.Policies)] = id
	}
	for bucket, key := range wants {
		if tx.Bucket([]byte(bucket)).Get([]byte(key)) == nil {
			return fmt.Errorf("box %s has no document in %s", id, bucket)
		}
	}
	return nil
}
