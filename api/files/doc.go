// Package files serves the files of a box: reading, writing, listing, and what else changes them. It resolves relative
// paths and bounds what comes and goes; what a path leads to is for the [Host] to find out, inside of the box.
package files
