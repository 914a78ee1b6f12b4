// Package usage lets callers use launched boxes: run commands and sessions, access files, serve visitors. [Service] wakes
// a box for that and keeps it awake, [IdlePauser] pauses unused boxes, and [DiskGuard] pauses boxes that fill the disk.
// [Listing] shows boxes with their resource usage.
//
// A user of a box enters its gate ([state.Box.Gate]), and takes the lock of the box only to wake it.
package usage
