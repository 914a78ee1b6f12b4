// Package boxdial connects the gateway to the ports of boxes, for public URLs.
//
// A server may listen on the box's address, or only on the box's loopback, which is not reachable from outside its
// network namespace. [Boxes] tries the address first. If the connection is refused, it makes a socket inside the box's
// namespace and connects to 127.0.0.1 and ::1, and finally to the box's IPv6 address.
//
// The namespace is the one that was pinned when the box was connected: it is opened by the path of its pin, compared with
// the device and inode recorded then, and is never the gateway's own. No process IDs are involved, so a reused one cannot
// lead to another namespace. A box that is unknown, or whose namespace has changed, is only tried at its address.
package boxdial
