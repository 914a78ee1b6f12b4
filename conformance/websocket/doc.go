// Package websocket holds cases for WebSocket peers and the paths between them: framing, pings, reserved bits and
// opcodes, fragmentation, UTF-8, closing, limits and compression (RFC 6455, RFC 7692). They are numbered as in the
// Autobahn test suite, which needs Python 2 and cannot be had from a package registry any more, and ask for the same; the
// code is our own. [Run] is the client, [Echo] the server that it is run against: one that is strict, and fast to fail.
package websocket
