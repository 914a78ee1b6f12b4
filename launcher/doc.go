// Package launcher starts boxes as OCI containers on hosts that have no launcher of their own.
//
// A box is created in two steps so that nothing in it runs before its network is closed. [Launcher.Prepare] makes an empty
// network namespace and pins it to a file; the caller adds an interface and firewall rules. [Launcher.Create] then mounts
// an overlay over the unpacked image, writes the few files that a box needs (resolver, user, CA) and starts a first process
// that only reaps orphans. [Launcher.Exec] runs commands.
//
// A box is confined by a user namespace with a range of user IDs that no other box has, so that root in the box is an
// unprivileged user on the host; by Docker's capabilities without NET_RAW, and no_new_privs; by Docker's seccomp profile
// without x32; by masked /proc and /sys; and by limits on memory, CPU and processes in its own control group. The image is
// the read-only lower layer of the overlay, mounted with its owners mapped into the box's range: boxes share it and cannot
// change it.
//
// A box does not depend on the process that created it. Its state is in files: its record in the state directory, its
// namespace pin and the runtime's state below the run directory. A launcher that starts later adopts running boxes
// ([Launcher.Recover]).
package launcher
