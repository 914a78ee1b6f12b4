// Package overlay mounts the root of a box: its writable layer over an image that all boxes share.
package overlay
