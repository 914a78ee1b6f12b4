// Package ssh logs in to SSH servers on behalf of boxes. It is an SSH server to the box, which accepts only the user of the
// rule, and an SSH client of the real server, with a key that the box never sees. It forwards sessions between the two, one
// request at a time: the commands that the rule allows, or all if the rule has no limit. Everything that could open a path
// to elsewhere (forwarded ports, sockets, agents and displays) is refused on both sides, as is every type of channel and
// request that is not listed here.
//
// [Serve] is the entry point. This package does not decide the destination of a connection: the caller passes one that it
// has already judged.
package ssh
