// Package a is what the test measures.
package a

type T struct{}

var _ = func() {
	short()
}
