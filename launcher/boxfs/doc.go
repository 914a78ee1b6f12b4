// Package boxfs works on the files of a box, confined to the box's root and with its user's rights. The gateway never opens
// a path of a box itself: each [Session] has its own process (see package worker), which the box can neither see nor trick
// into opening files of the host, and which can be killed even if it blocks on a file.
package boxfs
