// Package document seals the secrets of the store with the data key, and gives every document a tag, by which changed,
// moved, missing and resurrected documents are detected.
package document
