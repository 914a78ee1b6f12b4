// Package websocket contains test cases for WebSocket peers and the paths between them: framing, pings, reserved bits
// and opcodes, fragmentation, UTF-8, closing, limits and compression (RFC 6455, RFC 7692). It uses the numbers and
// requirements of the Autobahn test suite, which needs Python 2 and can no longer be installed from a package registry.
// The code is independent. [Run] is the client. [Echo] is the server for it, which is strict and fails fast.
package websocket
