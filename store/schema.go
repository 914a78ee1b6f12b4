package store

import (
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// The buckets. Keys are the box's ID unless said otherwise; "@" stands for the whole installation, since it can be in no
// ID.
var (
	bucketMeta     = []byte("meta")     // see the keys below
	bucketBoxes    = []byte("boxes")    // Box as JSON
	bucketNames    = []byte("names")    // name → ID
	bucketIndexes  = []byte("indexes")  // index, big-endian → ID
	bucketAddrs    = []byte("addrs")    // address, 4 or 16 bytes → ID
	bucketSecrets  = []byte("secrets")  // sealed: environment, other secrets, fields of the hosted product
	bucketPolicies = []byte("policies") // Policy as JSON: committed
	bucketStaged   = []byte("staged")   // Policy as JSON: not committed
	bucketHeaders  = []byte("headers")  // sealed: header rules; "@": the global ones
	bucketCAs      = []byte("cas")      // certificate, and the key sealed; "@": the installation's own
	bucketURLs     = []byte("urls")     // ID, NUL, port big-endian → URL as JSON
	bucketAPIKeys  = []byte("api_keys") // hash → APIKey as JSON
)

var (
	keyVersion = []byte("version")  // schema version, 4 bytes big-endian
	keyDataKey = []byte("data_key") // the data key, encrypted by age
	keySealing = []byte("sealing")  // what age encrypted it to: "key file" or "passphrase"
	keyCompact = []byte("compact")  // set: the next start writes the file anew, see [DB.RotateKey]
)

// global is the key of what belongs to the installation and to no box.
const global = "@"

// migrations lead from one schema version to the next: migrations[i] from i to i+1. A file that is new is version 0. An
// entry never changes once it was released; a new schema is a new entry.
var migrations = []func(*bolt.Tx) error{
	createBuckets,
}

func createBuckets(tx *bolt.Tx) error {
	for _, name := range [][]byte{
		bucketBoxes, bucketNames, bucketIndexes, bucketAddrs, bucketSecrets, bucketPolicies, bucketStaged, bucketHeaders,
		bucketCAs, bucketURLs, bucketAPIKeys,
	} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	return nil
}

// migrate brings the file to the present schema in one transaction, and refuses one that a newer version has written.
func migrate(b *bolt.DB, path string) error {
	return b.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucketIfNotExists(bucketMeta)
		if err != nil {
			return err
		}
		var version int
		if v := meta.Get(keyVersion); len(v) == 4 {
			version = int(binary.BigEndian.Uint32(v))
		} else if v != nil {
			return fmt.Errorf("the store %s is damaged: its schema version cannot be read; restore a backup", path)
		}
		if version > len(migrations) {
			return fmt.Errorf("the store %s was written by a newer boxgate (schema %d; this one knows %d): "+
				"run the newer version, or restore a backup made before the upgrade", path, version, len(migrations))
		}
		for ; version < len(migrations); version++ {
			if err := migrations[version](tx); err != nil {
				return fmt.Errorf("the store %s could not be brought to schema %d: %w", path, version+1, err)
			}
		}
		return meta.Put(keyVersion, binary.BigEndian.AppendUint32(nil, uint32(version)))
	})
}
