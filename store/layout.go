package store

// The files of the state directory that the store owns.
const (
	fileDB     = "boxgate.db"
	fileSecret = "secret.key"
	fileAPIKey = "api-key"
	// fileNextKey is the API key that is about to replace the one in fileAPIKey.
	fileNextKey = "api-key.next"
)

// newSuffix is the suffix of a file that is about to replace the store.
const newSuffix = ".new"

// The buckets. Keys are the box's ID unless said otherwise; "@" stands for the whole installation, since it is not
// valid in an ID. A value is a document preceded by its tag, see tags.go, except in the bucket meta, which has no tags.
var (
	bucketMeta     = []byte("meta")     // see the keys below
	bucketBoxes    = []byte("boxes")    // Box as JSON
	bucketNames    = []byte("names")    // name → ID
	bucketIndexes  = []byte("indexes")  // index, big-endian → ID
	bucketAddrs    = []byte("addrs")    // address, 4 or 16 bytes → ID
	bucketSecrets  = []byte("secrets")  // sealed: environment, other secrets, fields of the hosted product
	bucketPolicies = []byte("policies") // Policy as JSON: committed
	bucketStaged   = []byte("staged")   // not committed: Policy as JSON; "headers", NUL, ID or "@": header rules, sealed
	bucketHeaders  = []byte("headers")  // sealed: header rules; "@": the global ones
	bucketCAs      = []byte("cas")      // certificate, and the key sealed; "@": the installation's own
	bucketURLs     = []byte("urls")     // ID, NUL, port big-endian → URL as JSON
	bucketAPIKeys  = []byte("api_keys") // hash → APIKey as JSON
)

var (
	keyVersion = []byte("version")  // schema version, 4 bytes big-endian
	keyDataKey = []byte("data_key") // the data key, encrypted by age
	keySealing = []byte("sealing")  // what age encrypted it to: "key file" or "passphrase"
	keyCompact = []byte("compact")  // set: the next start rewrites the file, see [DB.RotateKey]
)

// global is the key of what belongs to the installation rather than a box.
const global = "@"

// The schemas of a store. In schema 1, documents had no tags. New stores have the current one.
const (
	schemaPlain = 1
	schemaNow   = 2
)

// documentBuckets are the buckets whose documents have tags: all except meta.
var documentBuckets = [][]byte{
	bucketBoxes, bucketNames, bucketIndexes, bucketAddrs, bucketSecrets, bucketPolicies, bucketStaged, bucketHeaders, bucketCAs,
	bucketURLs, bucketAPIKeys,
}

// How the data key is encrypted.
const (
	sealedByFile       = "key file"
	sealedByPassphrase = "passphrase"
)
