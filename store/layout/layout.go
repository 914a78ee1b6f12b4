// Package layout names the files of the state directory, and the buckets and keys of the store.
package layout

// Files of the store in the state directory.
const (
	FileDB     = "boxgate.db"
	FileSecret = "secret.key"
	FileAPIKey = "api-key"
	// FileNextKey has the API key that is about to replace the one in FileAPIKey.
	FileNextKey = "api-key.next"
)

// NewSuffix is the suffix of a file that is about to replace the store.
const NewSuffix = ".new"

// Files are patterns for all files of the store in the state directory, including temporary ones.
var Files = []string{
	FileDB, FileDB + ".*", FileSecret, FileSecret + ".*", FileAPIKey, FileNextKey,
	"." + FileDB + "-*", "." + FileSecret + "-*", "." + FileSecret + ".*-*", "." + FileAPIKey + "-*", "." + FileNextKey + "-*",
}

// Buckets. Keys are box IDs unless noted otherwise; "@" stands for the whole installation, because it is not valid in
// an ID. A value is a document preceded by its tag, see package document, except in the bucket meta, which has no tags.
var (
	Meta     = []byte("meta")     // see the keys below
	Boxes    = []byte("boxes")    // Box as JSON
	Names    = []byte("names")    // name → ID
	Indexes  = []byte("indexes")  // index, big-endian → ID
	Addrs    = []byte("addrs")    // address, 4 or 16 bytes → ID
	Secrets  = []byte("secrets")  // sealed: environment, other secrets, fields of the hosted product
	Policies = []byte("policies") // Policy as JSON: committed; "@", name: the named ones
	Staged   = []byte("staged")   // not committed: Policy as JSON under the same key; "headers", NUL, ID or "@": header rules, sealed
	Headers  = []byte("headers")  // sealed: header rules; "@": the global ones
	CAs      = []byte("cas")      // certificate, and the key sealed; "@": the installation's own
	URLs     = []byte("urls")     // ID, NUL, port big-endian → URL as JSON, with its key sealed
	APIKeys  = []byte("api_keys") // hash → APIKey as JSON

	Settings  = []byte("settings")  // sealed; "environment": variables for new boxes; "installation": the host's part of IDs; "source ", name: state of a secret's source; "identity keys": keys that sign tokens; "fleet": the membership of this host in a fleet; "fleet headers": its copy of the fleet's header rules; "domain ", host name: the API key that has it for a URL, or had it recently; "domains": the secret of the tokens that prove domains; "revoked key ", ID: the limits of a revoked API key; "ports ", ID: the shared ports of a box; "key secret ", ID: a secret of an API key
	Snapshots = []byte("snapshots") // sealed; ID of the snapshot → Snapshot
	Layers    = []byte("layers")    // layer, NUL, owner → layer
	Schedules = []byte("schedules") // sealed; ID of the box, NUL, ID of the schedule → Schedule
	Usage     = []byte("usage")     // Usage as JSON
	Models    = []byte("models")    // "box ", ID, or "key ", ID of the API key, or "@" → ModelAccount as JSON
	Approvals = []byte("approvals") // sealed; ID of the box, NUL, ID of the approval → Approval

	HistoryLines    = []byte("history_lines")    // ID or "@", NUL, kind → line of the history as JSON; NUL: the totals; see package history
	HistoryVersions = []byte("history_versions") // key of the line, version big-endian → version as JSON
	HistoryTexts    = []byte("history_texts")    // SHA-256 → text; SHA-256, "n": the number of versions that have it
)

// Keys of the bucket meta.
var (
	Version = []byte("version")   // schema version, 4 bytes big-endian
	DataKey = []byte("data_key")  // the data key, encrypted by age
	Sealing = []byte("sealing")   // what age encrypted it to: "key file" or "passphrase"
	Total   = []byte("documents") // the number of documents, the sum of their tags, and a MAC of both
	Compact = []byte("compact")   // set: the next start rewrites the file, see RotateKey of the store
)

// Global is the key of documents that belong to the installation instead of a box.
const Global = "@"

// Named is the prefix of the keys of named policies among the keys of the boxes.
const Named = "@"

// Schemas of a store. In schema 1, documents had no tags. Each later one adds buckets, which the first start of a newer
// version creates. New stores have the current schema.
const (
	SchemaPlain  = 1
	SchemaTagged = 2
	SchemaNow    = 6
)

// Documents are the buckets whose documents have tags: all except meta.
var Documents = [][]byte{
	Boxes, Names, Indexes, Addrs, Secrets, Policies, Staged, Headers, CAs,
	URLs, APIKeys, Settings, Schedules, Usage, Models, Snapshots, Layers, Approvals, HistoryLines, HistoryVersions, HistoryTexts,
}

// Added are the buckets that stores of schema 1 did not have.
var Added = [][]byte{Settings, Schedules, Usage, Models, Snapshots, Layers, Approvals, HistoryLines, HistoryVersions, HistoryTexts}

// How the data key is encrypted.
const (
	SealedByFile       = "key file"
	SealedByPassphrase = "passphrase"
)
