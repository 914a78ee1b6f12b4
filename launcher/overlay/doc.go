// Package overlay mounts the root of a box: what it writes over an image that all boxes share.
package overlay
