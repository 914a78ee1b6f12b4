// Package ssh logs in to SSH servers in the place of boxes. It is a server to the box, to which any user that the rule names
// is welcome, and a client to the server, with a key that the box never sees. Between the two it passes sessions on, one
// request at a time: commands that the rule allows, or all of them. What would open a way to elsewhere (forwarded ports,
// sockets, agents and displays) is refused on both sides, and so is every kind of channel and request that is not known
// here.
//
// [Serve] is the entry. Nothing in this package decides where a connection goes: the caller gives it one that was judged.
package ssh
