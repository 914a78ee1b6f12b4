// Package h2 sits between golang.org/x/net/http2 and the peers of an HTTP/2 connection. It enforces RFC 9113 on both
// sides where the library does not, bounds frames that cost their sender nothing, and provides what the library has no
// API for: the code with which a stream is reset, the requests that it refused on its own, and fields that must never
// be indexed.
package h2
