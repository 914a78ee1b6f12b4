// Package awake knows who uses a box, so that none is put to sleep while somebody does.
package awake
