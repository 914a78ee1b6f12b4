// Package launcher starts boxes as OCI containers on hosts that have no launcher of their own.
//
// A box is created in two steps so that nothing in it ever runs before its network is closed. [Launcher.Prepare] makes
// an empty network namespace and pins it to a file; the caller puts its interface and rules there. [Launcher.Create]
// then unpacks nothing: it lays an overlay over the image, writes the few files a box needs (its resolver, its user,
// its CA) and starts a first process that only reaps. Commands come in by [Launcher.Exec].
//
// What confines a box: a user namespace with a range of user IDs that no other box has, so that root inside is nobody
// outside; Docker's capabilities without NET_RAW, and no way to gain more (no_new_privs); Docker's seccomp profile without x32;
// masked /proc and /sys; limits on memory, CPU and processes in a control group of its own. The image is the lower,
// read-only layer of the overlay, mounted with its owners mapped into the box's range: boxes share it and none can
// change it.
//
// A box does not depend on the process that created it. Everything about it is in files: its record in the state
// directory, its namespace pin and the runtime's own state below the run directory. A launcher that starts later adopts
// running boxes ([Launcher.Recover]).
package launcher
