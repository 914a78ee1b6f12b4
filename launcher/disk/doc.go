// Package disk bounds what a box can write to its root: by project quotas of the file system that has it, or by a file system
// of its own in a file, mounted through a loop device.
package disk
