// Package disk bounds the writable layer of a box: with project quotas, or with a separate file system in a file, mounted
// through a loop device.
package disk
