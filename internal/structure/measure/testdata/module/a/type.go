// Package a has files that refer to each other in every way that counts.
package a

import "sync/atomic"

type T struct{ field int }

type Doer interface{ Do() }

// Run reaches Do through the interface alone, which is no use of method.go.
func Run(d Doer) { d.Do() }

var current atomic.Pointer[T]
