package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
)

// reader judges the documents of one bucket.
type reader struct {
	bucket []byte
	read   func(key, value []byte) error
}

// understand reads every document of a store of schema 1, in which damage only shows in the documents themselves: each
// must be complete and well-formed, be where it belongs, and have the documents that belong with it.
func (s *sealer) understand(tx *bolt.Tx) error {
	boxes := map[string]Box{}
	for _, r := range slices.Concat(plainReaders(boxes), s.sealedReaders(tx), indexReaders(boxes)) {
		bucket := tx.Bucket(r.bucket)
		if bucket == nil {
			return fmt.Errorf("it has no %s", r.bucket)
		}
		if err := bucket.ForEach(r.read); err != nil {
			return fmt.Errorf("%s: %w", r.bucket, err)
		}
	}
	for id, b := range boxes {
		if err := complete(tx, id, b); err != nil {
			return err
		}
	}
	return nil
}

// plainReaders judge documents that are not encrypted, and collect the boxes.
func plainReaders(boxes map[string]Box) []reader {
	return []reader{
		{bucketBoxes, reading(func(key string, b Box) error {
			boxes[key] = b
			return same(key, string(b.ID))
		})},
		{bucketPolicies, reading(understandPolicy)},
		{bucketURLs, reading(func(key string, u URL) error { return same(key, string(urlKey(u.Box, u.Port))) })},
		{bucketAPIKeys, reading(func(key string, k APIKey) error { return same(key, string(k.Hash[:])) })},
	}
}

// sealedReaders judge documents that are, or have a part that is, encrypted.
func (s *sealer) sealedReaders(tx *bolt.Tx) []reader {
	return []reader{
		{bucketSecrets, func(key, value []byte) error {
			return s.openJSON(tx, bucketSecrets, string(key), value, new(sealedPart))
		}},
		{bucketHeaders, func(key, value []byte) error {
			return s.openJSON(tx, bucketHeaders, string(key), value, new(headersRecord))
		}},
		{bucketStaged, func(key, value []byte) error {
			if !bytes.HasPrefix(key, []byte(stagedHeaders)) {
				return reading(understandPolicy)(key, value)
			}
			return s.openJSON(tx, bucketStaged, string(key), value, new(headersRecord))
		}},
		{bucketCAs, reading(func(key string, rec caRecord) error {
			return s.openJSON(tx, bucketCAs, key, rec.Key, new(string))
		})},
	}
}

// indexReaders judge the indexes of the boxes, once these are collected.
func indexReaders(boxes map[string]Box) []reader {
	return []reader{
		{bucketNames, func(key, value []byte) error { return same(string(key), boxes[string(value)].Name) }},
		{bucketIndexes, func(key, value []byte) error {
			return same(string(key), string(binary.BigEndian.AppendUint32(nil, boxes[string(value)].Index)))
		}},
		{bucketAddrs, func(key, value []byte) error {
			a, _ := netip.AddrFromSlice(key)
			if b := boxes[string(value)]; b.V4 != a && b.V6 != a {
				return fmt.Errorf("%s is not an address of box %s", a, value)
			}
			return nil
		}},
	}
}

// reading decodes a document for a check.
func reading[T any](check func(key string, document T) error) func(key, value []byte) error {
	return func(key, value []byte) error {
		var document T
		if err := decode(value, &document); err != nil {
			return err
		}
		return check(string(key), document)
	}
}

func same(key, want string) error {
	if key != want {
		return fmt.Errorf("the document at %q belongs at %q", key, want)
	}
	return nil
}

func understandPolicy(_ string, p Policy) error {
	_, err := policy.Compile(p.Spec, nil, nil, p.Version)
	return err
}

// complete requires everything that a box has from the beginning, and its policy once it has run.
func complete(tx *bolt.Tx, id string, b Box) error {
	wants := map[string]string{string(bucketSecrets): id, string(bucketIndexes): string(binary.BigEndian.AppendUint32(nil, b.Index))}
	if b.Name != "" {
		wants[string(bucketNames)] = b.Name
	}
	if !slices.Contains([]string{"", "creating", "deleted"}, strings.ToLower(b.State)) {
		wants[string(bucketPolicies)] = id
	}
	for bucket, key := range wants {
		if tx.Bucket([]byte(bucket)).Get([]byte(key)) == nil {
			return fmt.Errorf("box %s has no document in %s", id, bucket)
		}
	}
	return nil
}
