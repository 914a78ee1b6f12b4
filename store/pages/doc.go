// Package pages opens a bbolt file after reading every page and finding the file intact.
//
// It parses bbolt's file layout itself, because bbolt's [bbolt.Tx.Check] is not sufficient. Check misses damage of one
// of the two headers, extents that are too long, free list entries out of range, values outside the file and inlined
// buckets that loop. Damage can also make it fault, loop forever or allocate gigabytes, on a goroutine without
// recovery (docs/dependencies.md has the cases).
package pages
