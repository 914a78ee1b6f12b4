// Package image creates the root file systems of images: built from Debian packages, pulled from a registry, or unpacked
// from an OCI layout or an archive, each once, and shared read-only by all boxes.
package image
