// Package boxfs works on the files of a box, confined to the box's root and as its user. The gateway never opens a path
// of a box itself: a [Session] is a process made for it (see package worker), which the box can neither see nor fool into
// the host's files, and which can be killed, whatever it hangs in.
package boxfs
