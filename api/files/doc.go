// Package files serves the files of a box: reading, writing, listing, renaming and removing. It resolves relative paths
// and limits sizes; the [Host] resolves links, inside the box.
package files
