// Package document seals what is secret in the store with the data key, and gives every document a tag by which a change,
// a move, a loss or a return of one is noticed.
package document
