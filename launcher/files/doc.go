// Package files handles files that boxes and images may have created: it follows paths inside a root, removes trees of any
// shape, and replaces and locks the launcher's own files.
package files
