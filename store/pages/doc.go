// Package pages opens a bbolt file once it has read every page of it and found it whole.
//
// It parses the layout of the file, which is bbolt's own, because bbolt's [bbolt.Tx.Check] does not serve. That misses one of two headers that is
// damaged, extents that are too long, numbers of the free list that are out of range, values outside the file and inlined buckets that loop. And
// damage can make it fault, go on for ever or allocate gigabytes, on a goroutine that nothing recovers.
package pages
