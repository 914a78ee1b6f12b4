// Package rootfs writes the files of a new box into its root: its first process, user, names and certificates, in every
// place where programs look for them. The image is not trusted: links cannot lead out of the root, and reads are bounded.
package rootfs
