// Package layout names the files of the state directory, and the buckets and keys of the store.
package layout
