package store

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
)

// understand reads every document of a store of schema 1, in which nothing tells of damage but the documents themselves:
// each must be whole and well-formed, be where it belongs, and have those beside it that go with it.
func (s *sealer) understand(tx *bolt.Tx) error {
	boxes := map[string]Box{}
	for _, c := range []struct {
		bucket []byte
		read   func(key, value []byte) error
	}{
		{bucketBoxes, func(key, value []byte) error {
			var b Box
			if err := decode(value, &b); err != nil {
				return err
			}
			boxes[string(key)] = b
			return same(string(key), string(b.ID))
		}},
		{bucketSecrets, func(key, value []byte) error {
			return s.openJSON(tx, bucketSecrets, string(key), value, new(sealedPart))
		}},
		{bucketHeaders, func(key, value []byte) error {
			return s.openJSON(tx, bucketHeaders, string(key), value, new(headersRecord))
		}},
		{bucketCAs, func(key, value []byte) error {
			var rec caRecord
			if err := decode(value, &rec); err != nil {
				return err
			}
			return s.openJSON(tx, bucketCAs, string(key), rec.Key, new(string))
		}},
		{bucketPolicies, understandPolicy},
		{bucketStaged, understandPolicy},
		{bucketURLs, func(key, value []byte) error {
			var u URL
			if err := decode(value, &u); err != nil {
				return err
			}
			return same(string(key), string(urlKey(u.Box, u.Port)))
		}},
		{bucketAPIKeys, func(key, value []byte) error {
			var k APIKey
			if err := decode(value, &k); err != nil {
				return err
			}
			return same(string(key), string(k.Hash[:]))
		}},
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
	} {
		bucket := tx.Bucket(c.bucket)
		if bucket == nil {
			return fmt.Errorf("it has no %s", c.bucket)
		}
		if err := bucket.ForEach(c.read); err != nil {
			return fmt.Errorf("%s: %w", c.bucket, err)
		}
	}
	for id, b := range boxes {
		if err := complete(tx, id, b); err != nil {
			return err
		}
	}
	return nil
}

func same(key, want string) error {
	if key != want {
		return fmt.Errorf("the document at %q belongs at %q", key, want)
	}
	return nil
}

func understandPolicy(_, value []byte) error {
	var p Policy
	if err := decode(value, &p); err != nil {
		return err
	}
	_, err := policy.Compile(p.Spec, nil, nil, p.Version)
	return err
}

// complete requires all that a box has from its first moment on, and its policy once it has run.
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
			return fmt.Errorf("box %s has no document among the %s", id, bucket)
		}
	}
	return nil
}
