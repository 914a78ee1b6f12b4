// Package usage lets callers use boxes that were launched here: run commands, hold sessions, reach files, answer visitors. [Service] wakes a
// box for that and keeps it awake, [IdlePauser] pauses boxes that nobody uses, and [DiskGuard] those that fill the disk. [Listing] shows
// boxes with what they have used.
//
// Whoever uses a box enters its gate first ([state.Box.Gate]), and takes its lock only to wake it.
package usage
