package store

// The files of the state directory that the store owns.
const (
	fileDB     = "boxgate.db"
	fileSecret = "secret.key"
	fileAPIKey = "api-key"
	// fileNextKey is the API key that takes the place of the one in fileAPIKey, while that goes on.
	fileNextKey = "api-key.next"
)

// newSuffix ends the name of the file that is to take the store's place.
const newSuffix = ".new"

// The buckets. Keys are the box's ID unless said otherwise; "@" stands for the whole installation, since it can be in no
// ID. What is kept under a key is a document with its tag before it, see tags.go; in the bucket meta it is the value alone.
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
	keyCompact = []byte("compact")  // set: the next start writes the file anew, see [DB.RotateKey]
)

// global is the key of what belongs to the installation and to no box.
const global = "@"

// The schemas of a store: of 1, documents had no tags. A store is made with the present one.
const (
	schemaPlain = 1
	schemaNow   = 2
)

// documentBuckets are those whose documents carry a tag: all but meta.
var documentBuckets = [][]byte{
	bucketBoxes, bucketNames, bucketIndexes, bucketAddrs, bucketSecrets, bucketPolicies, bucketStaged, bucketHeaders, bucketCAs,
	bucketURLs, bucketAPIKeys,
}

// How the data key is encrypted.
const (
	sealedByFile       = "key file"
	sealedByPassphrase = "passphrase"
)
