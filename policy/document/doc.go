// Package document reads JSON documents strictly: [Parse] refuses duplicate keys and keeps the order of members, and
// [Value.Fields] refuses unknown keys, naming the nearest known one. Whatever is wrong is collected in [Problems], each with a
// pointer to its place, and comes back at once as one *[InvalidError].
//
// The readers of policies, header rules and matches, and of the dialects of other products, are built on it.
package document
