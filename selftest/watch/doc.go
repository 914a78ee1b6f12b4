// Package watch detects on the host whether packets of a self-test got through: on the interfaces, and at listeners
// that no box may reach.
package watch
