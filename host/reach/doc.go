// Package reach connects the gateway to the ports of boxes, for public URLs.
//
// An application may listen on the box's address, or on the loopback of the box alone, where nothing outside its network
// namespace can connect to it. [Boxes] tries the address first. When the connection is refused there, it makes a socket
// inside the box's namespace and connects to 127.0.0.1 and ::1, and last to the box's IPv6 address.
//
// The namespace is the one that was pinned when the box got its network: it is opened by the path of its pin, compared by
// device and inode with what was there then, and never the gateway's own. No process ID takes part, so none that is used
// again can lead to another namespace. A box that is not known, or whose namespace is not the same any more, is reached at
// its address or not at all.
package reach
