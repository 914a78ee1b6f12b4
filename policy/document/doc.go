// Package document reads JSON documents strictly: [Parse] refuses duplicate keys and keeps the order of members, and
// [Value.Fields] refuses unknown keys, naming the nearest known one. All mistakes are collected in [Problems], each with a
// JSON pointer, and returned as one *[InvalidError].
//
// The parsers of policies, header rules, matches and the dialects of other products use it.
package document
